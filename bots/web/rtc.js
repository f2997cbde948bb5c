// One WebRTC call to the room: microphone, offer and answer, data channel, statistics.
// A Call is used once; every new attempt makes a fresh one. When its path breaks, as when the network
// changes, it makes itself a new one, over which the room goes on with the conversation.

const TICK_MS = 500;
const PING_MS = 900;
const CONNECT_TIMEOUT_MS = 12_000;
const DISCONNECTED_GRACE_MS = 3_000;
const STALLED_TICKS = 5;
const RENEW_MS = 12_000;
const RENEW_EVERY_MS = 1_000;

/**
 * A failure that a person can act on. Its kind is "final", "retry" when trying again may help, or
 * "full" when that only helps once a place is free.
 */
export class RoomError extends Error {
  constructor(title, advice, kind = "final") {
    super(title);
    this.advice = advice;
    this.kind = kind;
  }
}

const noAnswer = () =>
  new RoomError("The room does not answer", "Check that the server runs, then press Connect.", "retry");

const noPath = () =>
  new RoomError(
    "No path for the sound",
    "The room answers, but audio does not get through. A firewall may block UDP: " +
      "try another network, or give the server a TURN address.",
    "retry",
  );

const MICROPHONE_ERRORS = {
  NotAllowedError: [
    "The microphone is blocked",
    "Allow it with the icon beside the page's address (and in the system's privacy settings), then press Connect.",
  ],
  NotFoundError: [
    "No microphone was found",
    "Plug one in or choose one in the system's sound settings, then press Connect.",
  ],
  NotReadableError: [
    "The microphone is busy",
    "Close the program that uses it, then press Connect.",
  ],
};

/** Ask for the microphone. `?raw` in the address turns the browser's clean-up of the sound off. */
export async function openMicrophone(signal) {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new RoomError(
      "The browser gives this address no microphone",
      "Open the page over https, or as http://localhost on the machine of the server.",
    );
  }
  const clean = !new URLSearchParams(location.search).has("raw");
  const audio = { echoCancellation: clean, noiseSuppression: clean, autoGainControl: clean };
  const opening = navigator.mediaDevices.getUserMedia({ audio });
  try {
    return await orAbort(opening, signal);
  } catch (error) {
    if (signal.aborted) {
      // The person may still answer the browser's question: then the microphone closes at once.
      opening.then(stop, () => {});
      throw error;
    }
    const [title, advice] = MICROPHONE_ERRORS[error.name] ?? [
      "The microphone cannot be opened",
      `${error.name}: ${error.message}. Check it in the system's sound settings, then press Connect.`,
    ];
    throw new RoomError(title, advice);
  }
}

export function stop(stream) {
  for (const track of stream.getTracks()) track.stop();
}

/** The promise's outcome, or the signal's reason if that comes first. */
function orAbort(promise, signal) {
  const aborted = new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  return Promise.race([promise, aborted]);
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    throw options?.signal?.aborted ? error : noAnswer();
  }
  if (response.ok) return response;
  const detail = (await response.json().catch(() => ({}))).detail;
  const advice = typeof detail === "string" ? detail : `The server answered ${response.status}.`;
  if (response.status === 503) throw new RoomError("No free place", advice, "full");
  const kind = response.status >= 500 ? "retry" : "final";
  throw new RoomError("The room could not take the call", advice, kind);
}

/** The room's own word on itself: ready, capacity, active, ice_servers, models. */
export async function fetchStatus(signal) {
  return (await request("/api/status", { signal })).json();
}

function send(method, body, signal) {
  const headers = { "content-type": "application/json" };
  return request("/api/offer", { method, headers, body: JSON.stringify(body), signal });
}

const iceServer = (entry) => (typeof entry === "string" ? { urls: entry } : entry);

/**
 * Events: "message" (detail: the parsed object), "track" (detail: MediaStream), "quality"
 * (detail: {level, text}), "broken" (detail: a RoomError) and "renewed" (detail: whether the
 * conversation goes on) of the path. `ended` resolves with the reason of a "bye" and rejects with a
 * RoomError.
 */
export class Call extends EventTarget {
  #unsent = [];
  #pcId = null;
  #agreed = false;
  #last = {};
  #ticks = 0;
  #pinged = 0;
  #quietTicks = 0;
  #timers = [];
  #leaving = false;
  #renewing = false;
  #opened = null;

  constructor(microphone, iceServers, outputLatency) {
    super();
    this.microphone = microphone;
    this.iceServers = iceServers.map(iceServer);
    this.outputLatency = outputLatency;
    this.bufferMs = null;
    this.ended = new Promise((resolve, reject) => {
      this.finish = resolve;
      this.fail = reject;
    });
    // The owner may not be waiting yet when the call fails.
    this.ended.catch(() => {});
    this.#build();
  }

  /** Negotiate and wait until both the media path and the data channel stand. */
  async open(signal) {
    this.#timers.push(setTimeout(() => this.channel.readyState !== "open" && this.fail(noPath()), CONNECT_TIMEOUT_MS));
    signal.addEventListener("abort", () => this.fail(signal.reason), { once: true });
    await this.#negotiate(signal);
    await Promise.race([this.#opened, this.ended]);
    this.#timers.push(setInterval(() => this.#tick(), TICK_MS));
    addEventListener("online", this.#onOnline);
  }

  send(message) {
    if (this.channel.readyState === "open") this.channel.send(JSON.stringify(message));
  }

  close() {
    this.#leaving = true;
    this.#timers.forEach(clearInterval);
    removeEventListener("online", this.#onOnline);
    this.pc.close();
  }

  #onOnline = () => this.#renew(noPath());

  /** A connection with which nothing is agreed yet. */
  #build() {
    const pc = new RTCPeerConnection({ iceServers: this.iceServers, bundlePolicy: "max-bundle" });
    pc.addTransceiver(this.microphone.getAudioTracks()[0], { direction: "sendrecv", streams: [this.microphone] });
    this.pc = pc;
    this.channel = pc.createDataChannel("chat");
    this.#opened = new Promise((resolve) => this.channel.addEventListener("open", resolve, { once: true }));
    this.#last = {};
    this.#unsent = [];
    this.#agreed = false;
    this.#listen();
  }

  /** Find a new path, for as long as the room keeps the conversation; else the call has failed. */
  async #renew(error) {
    if (this.#leaving || this.#renewing || !this.#pcId) return;
    this.#renewing = true;
    this.#emit("broken", error);
    const known = this.#pcId;
    const until = performance.now() + RENEW_MS;
    while (!this.#leaving && !(await this.#renewOnce())) {
      if (performance.now() > until) this.#lose(error);
      await new Promise((resolve) => setTimeout(resolve, RENEW_EVERY_MS));
    }
    this.#renewing = false;
    if (!this.#leaving) this.#emit("renewed", this.#pcId === known);
  }

  /** Whether a new path stands. The old one closes behind it, lest the room take that for a good-bye. */
  async #renewOnce() {
    const old = this.pc;
    old.onconnectionstatechange = this.channel.onclose = null;
    this.#build();
    try {
      const late = new Promise((_, reject) => setTimeout(() => reject(noPath()), CONNECT_TIMEOUT_MS));
      await this.#negotiate(AbortSignal.timeout(CONNECT_TIMEOUT_MS));
      await Promise.race([this.#opened, late, this.ended]);
    } catch (error) {
      if (error.kind === "final" || error.kind === "full") this.#lose(error);
      return false;
    } finally {
      old.close();
    }
    return true;
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #lose(error) {
    if (this.#leaving) return;
    this.#leaving = true;
    this.fail(error);
  }

  /** The path is broken: before the call stands that is its end, later it finds another one. */
  #break(error) {
    if (this.#timers.length > 1 && this.#pcId) this.#renew(error);
    else this.#lose(error);
  }

  #listen() {
    const { pc } = this;
    pc.ontrack = ({ track }) => this.#emit("track", new MediaStream([track]));
    pc.onicecandidate = ({ candidate }) => candidate && pc === this.pc && this.#trickle(candidate);
    pc.onconnectionstatechange = () => {
      if (pc.connectionState === "failed") this.#break(noPath());
      if (pc.connectionState === "disconnected") {
        this.#timers.push(setTimeout(() => {
          if (pc.connectionState === "disconnected") this.#break(noPath());
        }, DISCONNECTED_GRACE_MS));
      }
    };
    this.channel.onclose = () => this.#lose(noAnswer());
    this.channel.onmessage = ({ data }) => this.#receive(data);
  }

  async #negotiate(signal) {
    await this.pc.setLocalDescription();
    const { sdp, type } = this.pc.localDescription;
    const body = this.#pcId ? { sdp, type, pc_id: this.#pcId, restart_pc: true } : { sdp, type };
    const answer = await (await send("POST", body, signal)).json();
    if (this.#leaving) return;
    await this.pc.setRemoteDescription({ sdp: answer.sdp, type: answer.type });
    this.#pcId = answer.pc_id;
    this.#agreed = true;
    this.#flush();
  }

  #trickle({ candidate, sdpMid, sdpMLineIndex }) {
    this.#unsent.push({ candidate, sdp_mid: sdpMid, sdp_mline_index: sdpMLineIndex });
    this.#flush();
  }

  #flush() {
    if (!this.#agreed || !this.#unsent.length) return;
    const candidates = this.#unsent.splice(0);
    // A candidate that is not delivered shows as a path that does not stand, which has its own timer.
    send("PATCH", { pc_id: this.#pcId, candidates }).catch(() => {});
  }

  #receive(data) {
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return;
    }
    if (message?.type === "signalling") {
      if (message.message?.type === "renegotiate") this.#renew(noPath());
    } else if (message?.type === "bye") {
      // The last words may still sit in the jitter buffer: let them be heard.
      this.#leaving = true;
      this.#timers.push(setTimeout(() => this.finish(message.reason ?? ""), (this.bufferMs ?? 0) + 250));
    } else if (typeof message?.type === "string") {
      this.#emit("message", message);
    }
  }

  async #tick() {
    this.#ticks += 1;
    this.#ping();
    const stats = summarise(await this.pc.getStats());
    const delta = (key) => (stats[key] ?? 0) - (this.#last[key] ?? 0);
    const emitted = delta("jitterBufferEmittedCount");
    if (emitted > 0) {
      const jitterBuffer = delta("jitterBufferDelay") / emitted;
      const played = delta("totalSamplesCount");
      const output = played > 0 ? delta("totalPlayoutDelay") / played : this.outputLatency();
      this.bufferMs = Math.round(1000 * (jitterBuffer + output));
    }
    if (this.bufferMs !== null) this.send({ type: "playback", buffer_ms: this.bufferMs });
    if (this.#ticks % 4 === 0) this.#emit("quality", quality(stats, delta));
    const packets = delta("packetsReceived");
    this.#last = stats;
    await this.#watch(packets);
  }

  // By the clock, since a hidden tab ticks slower: the room takes 3 s without a ping for the end.
  #ping() {
    const now = performance.now();
    if (now - this.#pinged < PING_MS || this.channel.readyState !== "open") return;
    this.#pinged = now;
    this.channel.send(`ping: ${this.#ticks}`);
  }

  // The room sends sound without pause. When none comes and its port is closed too, it is gone: no
  // need to wait for ICE to notice. A slow answer is no proof, so it changes nothing.
  async #watch(packets) {
    this.#quietTicks = packets > 0 ? 0 : this.#quietTicks + 1;
    if (this.#quietTicks % STALLED_TICKS !== STALLED_TICKS - 1) return;
    try {
      await fetchStatus(AbortSignal.timeout(2_000));
    } catch (error) {
      if (error.kind === "retry") this.#renew(error);
    }
  }
}

function summarise(report) {
  const found = {};
  for (const entry of report.values()) {
    if (entry.type === "inbound-rtp" || entry.type === "media-playout") Object.assign(found, entry);
    if (entry.type === "candidate-pair" && entry.nominated) found.roundTrip = entry.currentRoundTripTime;
  }
  return found;
}

function quality(stats, delta) {
  const lost = Math.max(0, delta("packetsLost"));
  const loss = lost / Math.max(1, lost + delta("packetsReceived"));
  const rtt = Math.round(1000 * (stats.roundTrip ?? 0));
  const level = loss < 0.02 && rtt < 200 ? 3 : loss < 0.08 && rtt < 400 ? 2 : 1;
  const word = ["", "Poor", "Fair", "Good"][level];
  return { level, text: `${word}, ${rtt} ms, ${Math.round(100 * loss)} % lost` };
}
