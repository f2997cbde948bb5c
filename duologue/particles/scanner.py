"""Takes speech particles, thoughts and framing out of a turn's text while it streams in.

Events tile the text: each has `start` and `end` offsets into all that was fed since the last
flush, without gap or overlap. Other cuts of the same text into deltas give the same events, once
neighbouring events of a kind that is no particle are joined.

A mark counts by its bracket, so that ordinary brackets stay text: sounds and movements in any
bracket; moods and manners in round ones only where a clause begins; between asterisks, where a
word may just be stressed, only a verb form ("*sighs*") or a mark that follows no word. Nothing is
a mark behind a backslash, which is how brackets are meant literally.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from duologue.particles.lexicon import LEXICON, Entry, Lexicon
from duologue.particles.taxonomy import CONTROL, GOVERNING, Kind, Span


@dataclass(frozen=True, slots=True)
class Text:
    """Text to say and to show."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Particle:
    """A mark that steers the voice and is never said.

    Attributes:
        name: the taxonomy's name.
        kind: what it does to the voice.
        source: the mark as it was written.
        start: offset of the mark, in characters.
        end: offset behind the mark.
        closes: true for `</name>`, the end of what an earlier mark began.
        span: what of the text it is about.
        intensity: how much of it, 1..3; 0 where the mark does not say.
        value: what else the mark says: a pause's milliseconds, a pronunciation.
    """

    name: str
    kind: Kind
    source: str
    start: int
    end: int
    closes: bool = False
    span: Span = Span.POINT
    intensity: int = 0
    value: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a thought block: `text` is without the tags, the offsets are with them."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Control:
    """A token's name or a tool call that was left in the text: neither said nor shown."""

    text: str
    start: int
    end: int


class _Verdict(Enum):
    ORDINARY = auto()
    UNDECIDED = auto()


Event = Text | Particle | Thought | Control
_ORDINARY, _UNDECIDED = _Verdict.ORDINARY, _Verdict.UNDECIDED

MAX_HELD = 44
"""The most characters held back: 40 in doubled brackets that wait for one look-ahead.

More may be held of a long delta only until the same call has scanned it.
"""

_OPENER = re.compile(r"[(（\[【［<〈*◁]")
_WORDS = r"[^()（）\[\]【】［］<>〈〉*/◁▷\n]{0,40}"
_MARK = re.compile(
    rf"\[\[(?P<double>{_WORDS})\]\]|[(（](?P<round>{_WORDS})[)）]"
    rf"|[\[【［](?P<square>{_WORDS})[\]】］]|[<〈]/?(?P<angle>(?!\s){_WORDS})/?[>〉]"
    rf"|\*(?P<star>(?!\s){_WORDS})(?<!\s)\*"
)
_OPEN_MARK = re.compile(
    rf"(?:\[\[(?P<double>{_WORDS})\]?|[(（](?P<round>{_WORDS})|[\[【［](?P<square>{_WORDS})"
    rf"|[<〈]/?(?P<angle>(?!\s){_WORDS})/?|\*(?P<star>(?!\s){_WORDS}))\Z"
)
_LOOKS_AHEAD = ("double", "square", "star")


class _Block:
    """Text between two tags that is not for the ear; any of the end tags ends it."""

    def __init__(self, event: type[Thought] | type[Control], *begins: str):
        self.event = event
        self.ends = tuple(tag[0] + "/" + tag[1:] for tag in begins)
        self.tags = begins + self.ends
        self.begin = re.compile("|".join(begins), re.IGNORECASE)
        self.end = re.compile("|".join(self.ends), re.IGNORECASE)


_BLOCKS = (
    _Block(Thought, "<think>", "<thinking>", "<reasoning>", "<thought>", "◁think▷"),
    _Block(Control, "<tool_call>", "<tool_response>"),
)
_TAGS = tuple(tag for block in _BLOCKS for tag in block.tags)
_LONGEST_TAG = max(map(len, _TAGS))
_STEMS = ("<audio_", "<tts_", "<tool_", "</audio_", "</tts_", "</tool_")
_CONTROL = re.compile("|".join(CONTROL), re.IGNORECASE)
_OPEN_CONTROL = re.compile(
    rf"<\|[^\s<>|◁]{{0,40}}\|?\Z|(?:{'|'.join(_STEMS)})[a-z0-9_]{{0,32}}\Z", re.IGNORECASE
)


class Scanner:
    """Streaming scanner for one speaker, turn after turn.

    Args:
        lexicon: the forms to know.
    """

    def __init__(self, lexicon: Lexicon = LEXICON):
        self._lexicon = lexicon
        self._begin()

    def _begin(self) -> None:
        self._held = ""
        self._offset = 0
        self._before = ""  # the character in front of what is held
        self._tail = "\n"  # the last character of the text given out that is no blank
        self._block: _Block | None = None

    def feed(self, delta: str) -> list[Event]:
        """Takes the next piece of the turn and returns what is decided so far."""
        if self.passes(delta):
            return [Text(delta, self._offset - len(delta), self._offset)]
        return self._scan(self._held + delta, final=False)

    def passes(self, delta: str) -> bool:
        """Takes the next piece if all of it is text to give out at once, as of nearly all pieces.

        Returns:
            Whether it was taken; if not, `feed` has to.
        """
        if self._held or self._block or not delta or _OPENER.search(delta):
            return False
        self._offset += len(delta)
        self._before = delta[-1]
        self._tail = delta.rstrip(" \t")[-1:] or self._tail
        return True

    def flush(self) -> list[Event]:
        """Ends the turn: returns what was held, forgets an open thought and the offsets.

        A mark that lacks only its closing bracket is a mark, and the beginning of a tag or of a
        token's name is one: none is said because the turn broke off.
        """
        events = self._scan(self._held, final=True)
        self._begin()
        return events

    def _scan(self, text: str, final: bool) -> list[Event]:
        out: list[Event] = []
        done = at = 0
        while done < len(text):
            if self._block:
                done = at = self._pass_over(self._block, text, done, final, out)
                if self._block:
                    break
                continue
            found = _OPENER.search(text, at)
            start = found.start() if found else len(text)
            verdict = self._judge(text, start, done, final) if found else _UNDECIDED
            if verdict is _ORDINARY:
                at = start + 1
                continue
            self._say(text, done, start, out)
            done = at = start
            if isinstance(verdict, _Verdict):
                break
            out.append(verdict)
            done = at = verdict.end - self._offset
        self._before = text[done - 1] if done else self._before
        self._held = text[done:]
        self._offset += done
        return out

    def _say(self, text: str, start: int, end: int, out: list[Event]) -> None:
        if start < end:
            out.append(Text(text[start:end], self._offset + start, self._offset + end))
            self._tail = self._last(text, start, end)

    def _last(self, text: str, start: int, end: int) -> str:
        return text[start:end].rstrip(" \t")[-1:] or self._tail

    def _pass_over(
        self, block: _Block, text: str, start: int, final: bool, out: list[Event]
    ) -> int:
        """Takes a block up to an end tag, or to what may become one; returns where it stops."""
        found = block.end.search(text, start)
        stop, end = found.span() if found else (len(text), len(text))
        if not found and not final:
            tag = max(text.rfind("<", start), text.rfind("◁", start))
            if tag >= 0 and _begins(text, tag, block.ends):
                stop = end = tag
        if end > start:
            content = text[start : stop if block.event is Thought else end]
            out.append(block.event(content, self._offset + start, self._offset + end))
        self._block = None if found else block
        return end

    def _judge(self, text: str, at: int, done: int, final: bool) -> Event | _Verdict:
        """Decides on the opener at `at`; the text before `done` has been given out."""
        if text[at] in "<◁" and (event := self._framing(text, at, final)):
            return event
        mark = _MARK.match(text, at) or _OPEN_MARK.match(text, at)
        if not mark or mark.lastgroup is None:
            return _ORDINARY
        if not final and mark.end() == len(text) and self._waits(mark):
            return _UNDECIDED
        return self._decide(text, mark, done)

    def _framing(self, text: str, at: int, final: bool) -> Event | _Verdict | None:
        """Decides on a tag or a token's name at `at`; None where there is none and can be none."""
        for block in _BLOCKS:
            begin = block.begin.match(text, at)
            if tag := begin or block.end.match(text, at):
                self._block = block if begin else None
                content = "" if block.event is Thought else tag.group()
                return block.event(content, self._offset + at, self._offset + tag.end())
        offsets = self._offset + at, self._offset + len(text)
        if control := _CONTROL.match(text, at):
            return Control(control.group(), offsets[0], self._offset + control.end())
        if _OPEN_CONTROL.match(text, at):
            return Control(text[at:], *offsets) if final else _UNDECIDED
        if _begins(text, at, _TAGS) or _begins(text, at, _STEMS):
            cut_off = Thought("", *offsets) if len(text) - at > 1 else None
            return cut_off if final else _UNDECIDED
        return None

    def _waits(self, mark: re.Match[str]) -> bool:
        """Says whether a mark at the end of the text can grow, or needs the next character."""
        shape = mark.lastgroup or ""
        words = mark[shape]
        if mark.re is _OPEN_MARK:
            return (
                self._lexicon.viable_tag(words) if shape == "angle" else self._lexicon.viable(words)
            )
        return shape in _LOOKS_AHEAD and self._lexicon.match(words) is not None

    def _decide(self, text: str, mark: re.Match[str], done: int) -> Particle | _Verdict:
        at, end, shape = mark.start(), mark.end(), mark.lastgroup or ""
        look_up = self._lexicon.match_tag if shape == "angle" else self._lexicon.match
        entry = look_up(mark[shape])
        before = text[at - 1] if at else self._before
        around = _Around(before, text[end : end + 1], self._last(text, done, at))
        if not entry or before == "\\" or not _RULES[shape](entry, around):
            return _ORDINARY
        source = mark.group()
        closes = shape == "angle" and source[1] == "/"
        return Particle(
            entry.name,
            entry.kind,
            source,
            self._offset + at,
            self._offset + end,
            closes,
            _span(entry.kind, ranges=shape == "angle" and (closes or source[-2] != "/")),
            entry.intensity,
            entry.value,
        )


def _span(kind: Kind, ranges: bool) -> Span:
    if ranges:
        return Span.RANGE
    return Span.PREFIX if kind in GOVERNING else Span.POINT


@dataclass(frozen=True, slots=True)
class _Around:
    """What stands around a mark: the characters at its sides, and the last one said before it."""

    before: str
    after: str
    tail: str

    @property
    def leads(self) -> bool:
        """Whether a sentence or clause begins here."""
        return self.tail in "\n.!?…,;。！？，；"

    @property
    def stands_free(self) -> bool:
        """Whether the mark follows no word, but a pause or nothing."""
        return not self.tail.isalnum()


_SOUNDS = (Kind.EVENT, Kind.STAGE, Kind.PROSODY)


def _in_round(entry: Entry, around: _Around) -> bool:
    if entry.common:
        return False
    return entry.sure or (around.leads and entry.kind is not Kind.INTERJECTION)


def _in_square(entry: Entry, around: _Around) -> bool:
    link = around.after == "("
    return not link and (
        entry.kind in _SOUNDS or entry.kind is Kind.INTERJECTION or around.stands_free
    )


def _in_angle(entry: Entry, around: _Around) -> bool:
    return entry.kind is not Kind.LANGUAGE or around.leads


def _between_stars(entry: Entry, around: _Around) -> bool:
    joined = any(c in "*\\" or (c.isascii() and c.isalnum()) for c in around.before + around.after)
    if joined or entry.common or entry.kind not in (Kind.EVENT, Kind.STAGE, Kind.STYLE):
        return False
    if entry.form.endswith("s"):
        return True
    return entry.kind is not Kind.STYLE and (around.stands_free or not entry.form.isascii())


_RULES = {
    "round": _in_round,
    "square": _in_square,
    "double": _in_square,
    "angle": _in_angle,
    "star": _between_stars,
}


def _begins(text: str, at: int, tags: tuple[str, ...]) -> bool:
    """Says whether the text from `at` to its end is a beginning of one of `tags`, in any case."""
    if len(text) - at > _LONGEST_TAG or text[at] not in "<◁":
        return False
    start = text[at:].lower()
    return any(tag.startswith(start) for tag in tags)
