"""Takes speech particles and thoughts out of a turn's text while it streams in.

Events tile the text: each has `start` and `end` offsets into all that was fed since the last
flush, without gap or overlap. Other cuts of the same text into deltas give the same events, once
neighbouring texts and neighbouring thoughts are joined.

A mark counts by its bracket, so that ordinary brackets stay text: sounds and movements in any
bracket; moods and manners in round ones only where a clause begins; between asterisks, where a
word may just be stressed, only a verb form ("*sighs*") or a mark that follows no word.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from duologue.particles.taxonomy import LEXICON, Entry, Kind, Lexicon


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
    """

    name: str
    kind: Kind
    source: str
    start: int
    end: int
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a thought block: `text` is without the tags, the offsets are with them."""

    text: str
    start: int
    end: int


class _Verdict(Enum):
    ORDINARY = auto()
    UNDECIDED = auto()


Event = Text | Particle | Thought
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

_OPEN_TAGS = ("<think>", "<thinking>", "<reasoning>", "<thought>", "◁think▷")
_END_TAGS = tuple(tag[0] + "/" + tag[1:] for tag in _OPEN_TAGS)
_TAGS = _OPEN_TAGS + _END_TAGS
_LONGEST_TAG = max(map(len, _TAGS))
_TAG = re.compile("|".join(_TAGS), re.IGNORECASE)
_END_TAG = re.compile("|".join(_END_TAGS), re.IGNORECASE)


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
        self._thinking = False

    def feed(self, delta: str) -> list[Event]:
        """Takes the next piece of the turn and returns what is decided so far."""
        if not self._held and not self._thinking and delta and not _OPENER.search(delta):
            return [self._plain(delta)]
        return self._scan(self._held + delta, final=False)

    def flush(self) -> list[Event]:
        """Ends the turn: returns what was held, forgets an open thought and the offsets.

        A mark that lacks only its closing bracket is a mark, and the beginning of a thought tag a
        thought: neither is said because the turn broke off.
        """
        events = self._scan(self._held, final=True)
        self._begin()
        return events

    def _plain(self, delta: str) -> Text:
        """Gives out a delta in which no mark can begin, as nearly all are."""
        start = self._offset
        self._offset = end = start + len(delta)
        self._before = delta[-1]
        self._tail = self._last(delta, 0, len(delta))
        return Text(delta, start, end)

    def _scan(self, text: str, final: bool) -> list[Event]:
        out: list[Event] = []
        done = at = 0
        while done < len(text):
            if self._thinking:
                done = at = self._think(text, done, final, out)
                if self._thinking:
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
        while end > start and text[end - 1] in " \t":
            end -= 1
        return text[end - 1] if end > start else self._tail

    def _think(self, text: str, start: int, final: bool, out: list[Event]) -> int:
        """Takes thought up to an end tag, or to what may become one; returns where it stops."""
        found = _END_TAG.search(text, start)
        stop, end = found.span() if found else (len(text), len(text))
        if not found and not final:
            tag = max(text.rfind("<", start), text.rfind("◁", start))
            if tag >= 0 and _begins(text, tag, _END_TAGS):
                stop = end = tag
        if end > start:
            out.append(Thought(text[start:stop], self._offset + start, self._offset + end))
        self._thinking = not found
        return end

    def _judge(self, text: str, at: int, done: int, final: bool) -> Event | _Verdict:
        """Decides on the opener at `at`; the text before `done` has been given out."""
        if tag := _TAG.match(text, at):
            self._thinking = "/" not in tag.group()
            return Thought("", self._offset + at, self._offset + tag.end())
        if _begins(text, at, _TAGS):
            if not final:
                return _UNDECIDED
            if len(text) - at > 1:
                return Thought("", self._offset + at, self._offset + len(text))
        mark = _MARK.match(text, at) or _OPEN_MARK.match(text, at)
        if not mark or mark.lastgroup is None:
            return _ORDINARY
        if not final and mark.end() == len(text) and self._waits(mark):
            return _UNDECIDED
        return self._decide(text, mark, done)

    def _waits(self, mark: re.Match[str]) -> bool:
        """Says whether a mark at the end of the text can grow, or needs the next character."""
        words = mark[mark.lastgroup or 0]
        if mark.re is _OPEN_MARK:
            return self._lexicon.viable(words)
        return mark.lastgroup in _LOOKS_AHEAD and self._lexicon.match(words) is not None

    def _decide(self, text: str, mark: re.Match[str], done: int) -> Particle | _Verdict:
        at, end, shape = mark.start(), mark.end(), mark.lastgroup or ""
        entry = self._lexicon.match(mark[shape])
        before = text[at - 1] if at else self._before
        around = _Around(before, text[end : end + 1], self._last(text, done, at))
        if not entry or not _RULES[shape](entry, around):
            return _ORDINARY
        span = self._offset + at, self._offset + end
        closes = shape == "angle" and mark.group()[1] == "/"
        return Particle(entry.name, entry.kind, mark.group(), *span, closes)


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
    if entry.common or entry.kind is Kind.INTERJECTION:
        return False
    return entry.kind in _SOUNDS or around.leads


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
