// The session of one person with the room: connect, stay connected, hang up.

import { Call, RoomError, fetchStatus, openMicrophone, stop } from "./rtc.js";
import { Stage, STATES, Transcript } from "./view.js";

const BACKOFF_S = [0.5, 1, 2, 4, 8];
// A call that stood this long was a good one: the next break starts the back-off anew.
const STABLE_MS = 10_000;
const LEVEL_MS = 60;
const NEW_CONVERSATION = "Reconnected. The room starts a new conversation.";

const stage = new Stage();
const transcript = new Transcript();
const remoteAudio = document.getElementById("remote-audio");
const callButton = document.getElementById("call");
const muteButton = document.getElementById("mute");
const soundButton = document.getElementById("sound");

let session = null;
let microphone = null;
let call = null;
let state = "idle";
let muted = false;

function show(name, hint) {
  state = name;
  stage.state(name, hint);
}

const sleep = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const giveUp = () => reject(signal.reason);
    setTimeout(() => {
      signal.removeEventListener("abort", giveUp);
      resolve();
    }, 1000 * seconds);
    signal.addEventListener("abort", giveUp, { once: true });
  });

const microphoneStopped = () =>
  new RoomError("The microphone stopped", "Plug it in again, then press Connect.");

/** Levels of both sides, from the microphone and the remote track, for one session. */
class Ears {
  #context = new AudioContext();
  #taps = {};
  #levels = { you: 0, bot: 0 };
  #timer = setInterval(() => this.#draw(), LEVEL_MS);

  constructor() {
    this.#context.resume();
  }

  /** Seconds between the audio clock and the loudspeaker, as far as the browser knows. */
  latency = () => this.#context.outputLatency || this.#context.baseLatency || 0;

  listen(side, stream) {
    this.#taps[side]?.source.disconnect();
    const source = this.#context.createMediaStreamSource(stream);
    const meter = new AnalyserNode(this.#context, { fftSize: 1024 });
    source.connect(meter);
    this.#taps[side] = { source, meter, samples: new Float32Array(meter.fftSize) };
  }

  close() {
    clearInterval(this.#timer);
    this.#context.close();
    stage.levels(0, 0);
  }

  #draw() {
    if (document.hidden) return;
    for (const [side, { meter, samples }] of Object.entries(this.#taps)) {
      meter.getFloatTimeDomainData(samples);
      const power = samples.reduce((sum, x) => sum + x * x, 0) / samples.length;
      // -55 dBFS and below is silence, -10 dBFS is full.
      const level = Math.min(1, Math.max(0, (10 * Math.log10(power + 1e-9) + 55) / 45));
      this.#levels[side] = Math.max(level, this.#levels[side] * 0.75);
    }
    stage.levels(muted ? 0 : this.#levels.you, this.#levels.bot);
  }
}

const HANDLERS = {
  state: ({ state: name }) => Object.hasOwn(STATES, name) && show(name),
  user: (message) => {
    transcript.user(message);
    if (message.final && message.text) stage.announce(`You: ${message.text}`);
  },
  bot_text: (message) => transcript.botText(message),
  bot_heard: (message) => transcript.botHeard(message),
  bot_end: (message) => {
    transcript.botEnd(message);
    const said = transcript.turns.find(({ turn }) => turn === message.turn)?.bot;
    if (said?.text) stage.announce(`Bot: ${[...said.text].slice(0, said.heard).join("")}`);
  },
  particle: (message) => transcript.particle(message),
  thought: (message) => transcript.thought(message),
  tool: (message) => transcript.tool(message),
  latency: (message) => {
    transcript.latency(message);
    stage.latency(message);
  },
  error: ({ message, fatal }) => {
    if (fatal) call.fail(new RoomError("The room stopped", message));
    else transcript.note(message);
  },
};

function receive(message) {
  if (Object.hasOwn(HANDLERS, message.type)) HANDLERS[message.type](message);
}

async function play(stream) {
  remoteAudio.srcObject = stream;
  try {
    await remoteAudio.play();
  } catch (error) {
    if (error.name !== "NotAllowedError") return;
    stage.notice("The browser keeps the sound off", "It wants a press of a button first.");
    soundButton.hidden = false;
  }
}

async function roomReady(signal) {
  for (;;) {
    const status = await fetchStatus(signal);
    if (status.ready) return status;
    show("loading");
    await sleep(1, signal);
  }
}

/** One attempt, from the first question to the end of the call. Returns how a "bye" was worded. */
async function attempt(ears, signal, onLive) {
  const { ice_servers: iceServers = [] } = await roomReady(signal);
  const [track] = microphone.getAudioTracks();
  if (track.readyState === "ended") throw microphoneStopped();
  call = new Call(microphone, iceServers, ears.latency);
  try {
    call.addEventListener("message", ({ detail }) => receive(detail));
    call.addEventListener("quality", ({ detail }) => stage.quality(detail));
    call.addEventListener("track", ({ detail }) => {
      ears.listen("bot", detail);
      play(detail);
    });
    call.addEventListener("broken", ({ detail }) => {
      show("reconnecting");
      stage.notice(detail.message, "Trying again by itself.");
    });
    call.addEventListener("renewed", ({ detail: goesOn }) => {
      stage.notice(null);
      if (muted) call.send({ type: "mute", muted });
      if (goesOn) return;
      transcript.startCall();
      transcript.note(NEW_CONVERSATION);
      show("listening");
    });
    track.onended = () => call?.fail(microphoneStopped());
    transcript.startCall();
    await call.open(signal);
    onLive();
    return await call.ended;
  } finally {
    call.close();
  }
}

/** Attempts with back-off until the call ends for good. */
async function keepCalling(ears, signal) {
  let tries = 0;
  let liveSince = null;
  let everLive = false;
  const onLive = () => {
    if (everLive) transcript.note(NEW_CONVERSATION);
    liveSince = performance.now();
    everLive = true;
    stage.notice(null);
    stage.phase("live");
    show("listening");
    stage.announce("Connected");
    if (muted) call.send({ type: "mute", muted });
  };
  for (;;) {
    try {
      return await attempt(ears, signal, onLive);
    } catch (error) {
      // After a break, the seat of the broken call may need a moment to become free again.
      const mayRetry = error.kind === "retry" || (everLive && error.kind === "full");
      if (signal.aborted || !mayRetry) throw error;
      if (liveSince !== null && performance.now() - liveSince > STABLE_MS) tries = 0;
      liveSince = null;
      if (tries === BACKOFF_S.length) throw error;
      stage.phase("connecting");
      show("reconnecting");
      stage.notice(error.message, `Trying again by itself (${tries + 1} of ${BACKOFF_S.length}).`);
      await sleep(BACKOFF_S[tries] * (0.9 + 0.2 * Math.random()), signal);
      tries += 1;
    }
  }
}

async function connect() {
  if (session) return;
  session = new AbortController();
  const { signal } = session;
  let ears = null;
  stage.notice(null);
  stage.phase("connecting");
  show("connecting", "Allow the microphone if the browser asks.");
  try {
    microphone = await openMicrophone(signal);
    setMuted(false);
    ears = new Ears();
    ears.listen("you", microphone);
    const reason = await keepCalling(ears, signal);
    stage.notice("The room ended the call", reason);
  } catch (error) {
    if (!signal.aborted) stage.notice(error.message, error.advice ?? "Press Connect to try again.");
  } finally {
    if (microphone) stop(microphone);
    ears?.close();
    remoteAudio.srcObject = null;
    soundButton.hidden = true;
    session = call = microphone = null;
    stage.phase("idle");
    show("idle");
  }
}

function hangup() {
  session?.abort();
}

function setMuted(wanted) {
  if (!microphone) return;
  muted = wanted;
  microphone.getAudioTracks()[0].enabled = !muted;
  stage.muted(muted);
  call?.send({ type: "mute", muted });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === "Escape") hangup();
  if (event.key.toLowerCase() === "m") setMuted(!muted);
}

callButton.addEventListener("click", () => (session ? hangup() : connect()));
muteButton.addEventListener("click", () => setMuted(!muted));
soundButton.addEventListener("click", () => {
  soundButton.hidden = true;
  stage.notice(null);
  remoteAudio.play();
});
addEventListener("keydown", onKey);
addEventListener("pagehide", hangup);
show("idle");

/** For tests and for the browser's console. */
window.duologue = {
  get pc() {
    return call?.pc ?? null;
  },
  get state() {
    return state;
  },
  get turns() {
    return transcript.turns;
  },
  connect: () => void connect(),
  hangup,
};
