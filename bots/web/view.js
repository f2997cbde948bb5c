// What the page shows. Text from the room is only ever set as text, never parsed as HTML.

const BUBBLES = 200;
const CHIPS_PER_BUBBLE = 40;
const DETAIL_CHARS = 2_000;

const byId = (id) => document.getElementById(id);

function make(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The room counts characters as code points, a JavaScript string counts UTF-16 units. */
function splitAt(text, chars) {
  let index = 0;
  for (let seen = 0; seen < chars && index < text.length; seen += 1) {
    index += text.codePointAt(index) > 0xffff ? 2 : 1;
  }
  return [text.slice(0, index), text.slice(index)];
}

export const STATES = {
  idle: ["Ready", "Press Connect, allow the microphone, and speak."],
  connecting: ["Connecting", "Opening the line."],
  loading: ["Warming up", "The room is loading its models. The call starts by itself."],
  reconnecting: ["Reconnecting", "The line broke. Trying again."],
  listening: ["Listening", "Your turn. Say anything."],
  hearing: ["Hearing you", "Go on. A short pause ends your turn."],
  thinking: ["Thinking", "The bot has the floor."],
  speaking: ["Speaking", "Cut in whenever you like."],
  held: ["Paused", "It stopped to hear whether you want the floor."],
  tool: ["Using a tool", "It is looking something up."],
};

/** Everything beside the transcript: who has the floor, the buttons, the notice, the line. */
export class Stage {
  state(name, hint = STATES[name][1]) {
    document.body.dataset.state = name;
    setText(byId("state"), STATES[name][0]);
    setText(byId("hint"), hint);
    document.title = name === "idle" ? "duologue" : `${STATES[name][0]} · duologue`;
  }

  /** `phase` is idle, connecting or live. */
  phase(phase) {
    document.body.dataset.phase = phase;
    setText(byId("call-label"), { idle: "Connect", connecting: "Cancel", live: "Hang up" }[phase]);
    byId("mute").disabled = phase === "idle";
    if (phase !== "live") byId("quality").hidden = true;
  }

  muted(muted) {
    byId("mute").setAttribute("aria-pressed", String(muted));
    setText(byId("mute-label"), muted ? "Unmute" : "Mute");
  }

  /** Levels from 0 to 1. Styles are touched only where a step is visible, so silence costs nothing. */
  levels(you, bot) {
    for (const [id, level] of [["disc-you", you], ["disc-bot", bot], ["meter", you]]) {
      const step = (Math.round(level * 20) / 20).toString();
      const node = byId(id);
      if (node.dataset.level === step) continue;
      node.dataset.level = step;
      node.style.setProperty("--level", step);
      if (id === "meter") node.setAttribute("aria-valuenow", String(Math.round(step * 100)));
    }
  }

  quality({ level, text }) {
    byId("quality").hidden = false;
    byId("quality").dataset.level = String(level);
    setText(byId("quality-text"), text);
  }

  notice(title, advice = "") {
    byId("notice").hidden = !title;
    setText(byId("notice-title"), title ?? "");
    setText(byId("notice-text"), advice);
  }

  announce(text) {
    setText(byId("announcer"), text);
  }

  latency(message) {
    const { parts, total } = latencyParts(message);
    setText(byId("total"), total);
    byId("stages").replaceChildren(...parts.flatMap(({ key, label, ms, left, width }) => {
      const value = make("dd", "stage-time");
      const bar = make("i", key);
      bar.style.marginLeft = `${left}%`;
      bar.style.width = `${width}%`;
      value.append(bar, make("span", "", ms === null ? "–" : `${Math.round(ms)} ms`));
      return [make("dt", "", label), value];
    }));
  }
}

const LATENCY = [
  ["asr_ms", "asr", "Recognition"],
  ["end_of_turn_ms", "eot", "End of turn"],
  ["lm_first_token_ms", "lm", "First token"],
  ["voice_first_audio_ms", "voice", "First audio"],
];

/** Lay the stages one after the other on a line as long as the whole answer took. */
function latencyParts(message) {
  const values = LATENCY.map(([field]) => (Number.isFinite(message[field]) ? Math.max(0, message[field]) : null));
  const sum = values.reduce((total, ms) => total + (ms ?? 0), 0);
  const known = Number.isFinite(message.total_ms);
  const whole = Math.max(sum, known ? message.total_ms : 0, 1);
  let start = 0;
  const parts = LATENCY.map(([, key, label], index) => {
    const ms = values[index];
    const part = { key, label, ms, left: (100 * start) / whole, width: (100 * (ms ?? 0)) / whole };
    start += ms ?? 0;
    return part;
  });
  const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;
  return { parts, total: known ? seconds(message.total_ms) : `over ${seconds(sum)}` };
}

/** The conversation of the last 200 bubbles. Turn numbers are those of one call. */
export class Transcript {
  #list = byId("transcript");
  #latest = byId("latest");
  #records = new Map();
  #forgotten = -1;
  #following = true;

  constructor() {
    let lastTop = 0;
    this.#list.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#list;
      // Only a scroll upwards is a person's wish to read back; a list that shrinks is none.
      if (scrollHeight - scrollTop - clientHeight < 40) this.#following = true;
      else if (scrollTop < lastTop) this.#following = false;
      lastTop = scrollTop;
      this.#latest.hidden = this.#following;
    }, { passive: true });
    this.#latest.addEventListener("click", () => this.#toEnd());
    // A notice or a turned phone makes the list smaller: the last words stay in sight.
    new ResizeObserver(() => this.#following && this.#toEnd()).observe(this.#list);
  }

  /** The turns of this call as plain data. */
  get turns() {
    return [...this.#records.values()].map(({ nodes, ...turn }) => ({
      ...turn,
      tools: [...turn.tools.values()],
    }));
  }

  /** A new call counts its turns anew; what was said before stays to be read. */
  startCall() {
    this.#records.clear();
    this.#forgotten = -1;
  }

  note(text) {
    this.#list.append(make("li", "note", text));
    this.#settle();
  }

  user({ turn, text, final }) {
    this.#change(turn, (record) => {
      record.user = { text, final };
      if (!text) {
        // A cough or an "mm-hmm": nothing was said, so nothing stays.
        record.nodes.user?.item.remove();
        record.nodes.user = null;
        return;
      }
      const { item, words } = this.#bubble(record, "user");
      item.classList.toggle("interim", !final);
      setText(words, text);
    });
  }

  botText({ turn, text }) {
    this.#change(turn, (record) => {
      record.bot.text = text;
      this.#drawBot(record);
    });
  }

  botHeard({ turn, chars }) {
    this.#change(turn, (record) => {
      record.bot.heard = Math.max(record.bot.heard, chars);
      this.#drawBot(record);
    });
  }

  botEnd({ turn, reason, chars }) {
    this.#change(turn, (record) => {
      Object.assign(record.bot, { heard: chars, end: reason });
      this.#drawBot(record);
    });
  }

  particle({ turn, name, text, rendered }) {
    this.#change(turn, (record) => {
      record.particles.push({ name, text, rendered });
      const chip = make("span", "chip particle", text || name);
      if (!rendered) {
        chip.classList.add("silent");
        chip.append(make("small", "", "not voiced"));
      }
      this.#chip(record, chip);
    });
  }

  thought({ turn, text }) {
    this.#change(turn, (record) => {
      record.thought = text;
      record.nodes.thought ??= this.#details(record, "thought");
      setText(record.nodes.thought.querySelector(".name"), "thought");
      setText(record.nodes.thought.querySelector("pre"), text.slice(0, DETAIL_CHARS));
    });
  }

  tool({ turn, call_id, name, arguments: args, status, result }) {
    this.#change(turn, (record) => {
      const known = record.tools.get(call_id);
      record.tools.set(call_id, { ...known, call_id, name, arguments: args, status, result });
      const chip = record.nodes.tools.get(call_id) ?? this.#toolChip(record, call_id);
      chip.dataset.status = status;
      setText(chip.querySelector(".name"), name);
      setText(chip.querySelector("small"), TOOL_WORDS[status] ?? status);
      setText(chip.querySelector("pre"), describe(args, result));
    });
  }

  latency(message) {
    this.#change(message.turn, (record) => {
      const { type, turn, ...timing } = message;
      record.latency = timing;
      const { parts, total } = latencyParts(message);
      const { extra } = this.#bubble(record, "bot");
      const bar = make("span", "bar");
      const known = parts.filter(({ ms }) => ms !== null);
      for (const { key, ms } of known) {
        const segment = make("i", key);
        segment.style.flexGrow = ms;
        bar.append(segment);
      }
      // Two seconds fill the line, so bars of different turns compare.
      bar.style.setProperty("--share", Math.min(1, (message.total_ms ?? 0) / 2000));
      const summary = make("summary", "");
      summary.append(bar, make("span", "total", total));
      const words = known.map(({ label, ms }) => `${label} ${Math.round(ms)} ms`).join(" · ");
      const box = make("details", "latency");
      box.append(summary, make("p", "", words));
      extra.querySelector(".latency")?.remove();
      extra.append(box);
    });
  }

  #change(turn, apply) {
    if (!Number.isFinite(turn) || turn <= this.#forgotten) return;
    if (!this.#records.has(turn)) this.#records.set(turn, newRecord(turn));
    apply(this.#records.get(turn));
    this.#settle();
  }

  #bubble(record, who) {
    if (record.nodes[who]) return record.nodes[who];
    const item = make("li", `bubble ${who}`);
    const words = make("p", "words");
    words.dir = "auto";
    const chips = make("div", "chips");
    const extra = make("div", "extra");
    item.dataset.turn = record.turn;
    item.append(make("span", "unseen", who === "user" ? "You:" : "Bot:"), words, chips, extra);
    record.nodes[who] = { item, words, chips, extra };
    // Recognition may finish after the answer has begun; the question still stands first.
    const answer = who === "user" ? record.nodes.bot?.item : null;
    if (answer?.parentNode) answer.before(item);
    else this.#list.append(item);
    return record.nodes[who];
  }

  #drawBot(record) {
    const { text, heard, end } = record.bot;
    // An answer that was dropped before its first word leaves nothing to see.
    if (!text && !record.nodes.bot) return;
    const { item, words, chips } = this.#bubble(record, "bot");
    item.hidden = !text && !chips.childElementCount;
    const [before, after] = splitAt(text, heard);
    const cut = end === "interrupted";
    item.classList.toggle("cut", cut);
    if (!words.childElementCount || cut !== (words.lastChild.localName === "del")) {
      words.replaceChildren(make("span", "heard"), make(cut ? "del" : "span", cut ? "lost" : "ahead"));
    }
    setText(words.firstChild, before);
    setText(words.lastChild, after);
  }

  #chip(record, chip) {
    const { item, chips } = this.#bubble(record, "bot");
    item.hidden = false;
    if (chips.childElementCount < CHIPS_PER_BUBBLE) chips.append(chip);
  }

  #toolChip(record, callId) {
    const chip = this.#details(record, "tool");
    record.nodes.tools.set(callId, chip);
    return chip;
  }

  #details(record, kind) {
    const chip = make("details", `chip ${kind}`);
    const summary = make("summary", "");
    summary.append(make("span", "name"), make("small", ""));
    chip.append(summary, make("pre", ""));
    this.#chip(record, chip);
    return chip;
  }

  #settle() {
    while (this.#list.childElementCount > BUBBLES) this.#list.firstElementChild.remove();
    while (this.#records.size > BUBBLES) {
      const [oldest] = this.#records.keys();
      this.#records.delete(oldest);
      this.#forgotten = Math.max(this.#forgotten, oldest);
    }
    if (this.#following) this.#toEnd();
  }

  #toEnd() {
    this.#list.scrollTop = this.#list.scrollHeight;
    this.#latest.hidden = true;
  }
}

const TOOL_WORDS = { requested: "asked", running: "running", result: "done", error: "failed", cancelled: "cancelled" };

function newRecord(turn) {
  return {
    turn,
    user: { text: "", final: false },
    bot: { text: "", heard: 0, end: null },
    thought: "",
    particles: [],
    tools: new Map(),
    latency: null,
    nodes: { user: null, bot: null, thought: null, tools: new Map() },
  };
}

function describe(args, result) {
  const lines = [`arguments ${JSON.stringify(args ?? {}, null, 1)}`];
  if (result !== undefined && result !== null) lines.push(`result ${JSON.stringify(result, null, 1)}`);
  return lines.join("\n").slice(0, DETAIL_CHARS);
}
