// Runs in the page before the page's own script: the caller's mouth and ear on one AudioContext.
// The microphone becomes a stream that Python plays into; what comes back is handed to Python.

(() => {
  if (!navigator.mediaDevices) return;
  const RATE_HZ = 48_000;
  // Uniform noise of this peak has -70 dBFS: no room is digitally silent.
  const NOISE_PEAK = 10 ** (-70 / 20) * Math.sqrt(3);
  const context = new AudioContext({ sampleRate: RATE_HZ });
  const mouth = new GainNode(context);
  const ready = context.audioWorklet.addModule(
    URL.createObjectURL(new Blob([`(${worklet})()`], { type: "text/javascript" })),
  );
  const put = (kind, at, data) => window.rehearsalPut(kind, at, data);

  /** Blocks of 50 ms: often enough to react to, seldom enough to cost little. */
  function worklet() {
    class Tap extends AudioWorkletProcessor {
      #block = new Int16Array(2400);
      #filled = 0;
      #start = 0;

      process([[samples]]) {
        for (let i = 0; i < (samples?.length ?? 0); i += 1) {
          if (this.#filled === 0) this.#start = currentFrame + i;
          this.#block[this.#filled] = Math.round(32767 * Math.max(-1, Math.min(1, samples[i])));
          this.#filled += 1;
          if (this.#filled < this.#block.length) continue;
          this.port.postMessage([this.#start, this.#block.slice().buffer]);
          this.#filled = 0;
        }
        return true;
      }
    }
    registerProcessor("tap", Tap);
  }

  function hum() {
    const buffer = new AudioBuffer({ length: 2 * RATE_HZ, sampleRate: RATE_HZ });
    const samples = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i += 1) samples[i] = NOISE_PEAK * (2 * Math.random() - 1);
    const noise = new AudioBufferSourceNode(context, { buffer, loop: true });
    noise.connect(mouth);
    noise.start();
  }

  function base64(bytes) {
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text);
  }

  /** Hand a stream's sound to Python, block by block. */
  async function tap(kind, stream) {
    await ready;
    const options = { channelCount: 1, channelCountMode: "explicit" };
    const node = new AudioWorkletNode(context, "tap", options);
    node.port.onmessage = ({ data: [frame, pcm] }) =>
      put(kind, frame / RATE_HZ, base64(new Uint8Array(pcm)));
    context.createMediaStreamSource(stream).connect(node).connect(context.destination);
  }

  const { mediaDevices } = navigator;
  const openDevice = mediaDevices.getUserMedia.bind(mediaDevices);
  mediaDevices.getUserMedia = async (constraints) => {
    await context.resume();
    if (window.rehearsalDevice) {
      const stream = await openDevice(constraints);
      tap("mic", stream);
      return stream;
    }
    const microphone = new MediaStreamAudioDestinationNode(context, { channelCount: 1 });
    mouth.connect(microphone);
    return microphone.stream;
  };

  window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(...args) {
      super(...args);
      this.addEventListener("track", ({ track }) => tap("bot", new MediaStream([track])));
    }

    createDataChannel(...args) {
      const channel = super.createDataChannel(...args);
      channel.addEventListener("message", ({ data }) => put("event", context.currentTime, data));
      return channel;
    }
  };

  /** Play 16-bit PCM (base64) at a time of the context; returns when it begins. */
  window.rehearsalSay = (pcm, at) => {
    const bytes = Uint8Array.from(atob(pcm), (char) => char.charCodeAt(0));
    const samples = Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: RATE_HZ });
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(mouth);
    const start = Math.max(at, context.currentTime + 0.02);
    source.start(start);
    return start;
  };

  hum();
})();
