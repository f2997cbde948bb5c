"""One turn's stream, ids or text, to typed events.

Other cuts of the same stream give the same events, once neighbouring deltas of a kind are joined.
What is framing, or may be, reaches neither speech nor transcript: in doubt it is dropped.
"""

from codecs import utf_8_decode
from collections.abc import Iterable
from enum import Enum, auto
from itertools import groupby
from operator import index

from duologue.errors import ConfigError
from duologue.lm.engine import MalformedCall, ToolCall
from duologue.lm.events import (
    DropReason,
    EndReason,
    Event,
    ToolCallMalformed,
    ToolCallReady,
    ToolCallStarted,
    ToolCallUndecoded,
)
from duologue.lm.formats import Kind, ToolFormat
from duologue.lm.framing import FramingScanner, Tag, beginning
from duologue.lm.guards import LoopGuard
from duologue.lm.speech_channel import SpeechChannel
from duologue.lm.tool_calls import Malformed, OpenCall, parse_call
from duologue.lm.turn import TurnWriter
from duologue.lm.vocabulary import Vocabulary
from duologue.particles import Particle as Mark
from duologue.particles import Scanner, Text, lexicon_for

ID_LOOP, CHARACTER_LOOP = (128, 16), (512, 64)
"""How long text repeats itself until it is a loop, and the longest phrase that it repeats."""
BROKEN = "\ufffd"
AUDIO, TEXT = int(Kind.AUDIO), int(Kind.TEXT)


class State(Enum):
    """Where in its turn a stream is."""

    TEXT = auto()
    SPEECH = auto()
    TAIL = auto()
    THOUGHT = auto()
    CALL = auto()


class Demux:
    """The state machine of one turn.

    Args:
        vocabulary: What ids and names mean; with a tokenizer text is decoded, without one it
            stays ids.
        turn_id: Stamped on each event.
        prefix: Name of the token that ends the prompt, such as "tts_start" or "think".

    Raises:
        UsageError: no such prefix.
    """

    def __init__(self, vocabulary: Vocabulary, *, turn_id: int = 0, prefix: str | None = None):
        profile = vocabulary.profile
        self._vocabulary = vocabulary
        self._pieces = vocabulary.vocab.pieces if vocabulary.vocab else None
        self._decodes = self._pieces is not None
        self._blank = self._pieces is not None and self._pieces.leading_blank
        self._bytes = b""  # the beginning of a character
        self._framing = FramingScanner(self._passes)
        self._particles = Scanner(lexicon_for(profile.family))
        self._ids_guard, self._text_guard = LoopGuard(*ID_LOOP), LoopGuard(*CHARACTER_LOOP)
        self._turn = TurnWriter(turn_id, vocabulary.books)
        self._speech = SpeechChannel(profile, self._turn)
        self._state = State.SPEECH if profile.speech_from_start else State.TEXT
        self._after_thought = self._after_call = self._state
        self._call: OpenCall | None = None
        self._calls = 0
        self._after_tag = False
        self._begun = ""  # the end of the text given out, if it may be the beginning of a tag
        self._parted = False  # from the text that follows
        if prefix is not None:
            self._move(vocabulary.prefix(prefix))

    @property
    def ended(self) -> bool:
        """Whether `TurnEnd` has been given out; what follows is ignored."""
        return self._turn.ended

    def push(self, ids: Iterable[int]) -> list[Event]:
        """Takes the next ids.

        Raises:
            ConfigError: nobody tells the ids of the audio tokens.
        """
        if self._vocabulary.unknown:
            raise ConfigError(
                f"the ids of {self._vocabulary.unknown[0]} are not known; give the tokenizer of "
                f"{self._vocabulary.profile.family}, or its text instead of ids"
            )
        for kind, run in groupby(map(index, ids), self._vocabulary.kind_of):
            if self._turn.ended:
                break
            if kind >= AUDIO:
                first = self._vocabulary.books[kind - AUDIO].first or 0
                self._audio(kind - AUDIO, [token - first for token in run])
            elif kind == TEXT:
                self._text_ids(list(run))
            else:
                self._others(kind, list(run))
            if self._turn.idle:
                self._end(EndReason.IDLE)
        return self._turn.take()

    def push_text(self, text: str) -> list[Event]:
        """Takes the next text of a server that gives no ids, its special tokens spelled out."""
        if not self._turn.ended:
            self._decodes = True
            self._characters(text, spelled=False)
            self._over()
        return self._turn.take()

    def push_call(self, call: ToolCall | MalformedCall) -> list[Event]:
        """Takes a whole call of a server that puts calls apart."""
        if not self._turn.ended:
            self._flush_text()
            place, self._calls = self._calls, self._calls + 1
            if isinstance(call, ToolCall):
                self._turn.add(ToolCallStarted, place)
                self._turn.add(ToolCallReady, place, call.name, call.arguments)
            else:
                self._turn.add(ToolCallMalformed, place, call.problem, call.source, ())
        return self._turn.take()

    def finish(self, reason: EndReason = EndReason.CUT) -> list[Event]:
        """Ends the turn, if the stream has not: nothing is held back any more."""
        self._end(reason)
        return self._turn.take()

    def _over(self) -> bool:
        """Ends the turn if it is idle; whether it has ended."""
        if self._turn.idle:
            self._end(EndReason.IDLE)
        return self._turn.ended

    def _end(self, reason: EndReason) -> None:
        if self.ended:
            return
        self._flush_text()
        if self._call:
            self._close_call("it has no end")
        self._speech.flush()
        self._turn.end(reason)

    def _audio(self, book: int, tokens: list[int]) -> None:
        if self._state is State.SPEECH:
            if self._speech.feed(book, tokens):
                self._end(EndReason.LOOP)
        else:
            self._turn.drop_audio(DropReason.STRAY_AUDIO, [(book, token) for token in tokens])

    # Text

    def _text_ids(self, ids: list[int]) -> None:
        self._turn.awake()
        admitted, looping = self._ids_guard.admit(ids)
        if looping:
            ids = ids[:admitted]
        if self._pieces is None:
            self._undecoded(ids)
        else:
            data = self._bytes + b"".join([self._pieces[token] for token in ids])
            text, used = utf_8_decode(data, "replace")
            self._bytes = b""
            self._characters(text, spelled=True)
            # Only now: a tag within this text gives out what stands before it, not behind.
            self._bytes = data[used:]
        if looping:
            self._end(EndReason.LOOP)

    def _undecoded(self, ids: list[int]) -> None:
        if self._call:
            self._call.add_ids(ids)
        elif self._state is State.THOUGHT:
            self._turn.thought("", tuple(ids))
        else:
            self._turn.text("", tuple(ids), self._state is State.SPEECH)

    def _characters(self, text: str, spelled: bool) -> None:
        if self._blank and text:
            text, self._blank = text.removeprefix(" "), False
        whole, *others = text.split(BROKEN) if BROKEN in text else (text,)
        self._framed(whole, spelled)
        for part in others:
            if not self._over():
                self._turn.drop(DropReason.UNDECODABLE, [BROKEN])
            if not self._over():
                self._framed(part, spelled)

    def _framed(self, text: str, spelled: bool) -> None:
        """Text with framing in it; `spelled` if it comes from ids of text."""
        for part in self._framing.feed(text):
            if isinstance(part, Tag):
                self._tag(part, spelled)
                if self._over():
                    return
            elif spelled:
                self._write(part)
            else:
                self._turn.awake()
                admitted, looping = self._text_guard.admit(part)
                self._write(part[:admitted])
                if looping:
                    self._end(EndReason.LOOP)
                    return

    def _write(self, text: str) -> None:
        """Text without framing to where it belongs."""
        if self._call:
            self._call.add(text)
        elif self._state is State.THOUGHT:
            self._turn.thought(text, ())
        else:
            if self._after_tag:
                text = text.lstrip()
                self._after_tag = not text
            if not self._begun and self._particles.passes(text):
                self._turn.text(text, (), self._state is State.SPEECH)
            else:
                self._say(self._particles.feed(text))

    def _say(self, scanned: list) -> None:
        voiced = self._state is State.SPEECH
        for item in scanned:
            if isinstance(item, Text):
                # Without what was taken out, the text at its sides could make a tag.
                text = f" {item.text}" if self._parted else item.text
                self._turn.text(text, (), voiced)
                self._begun, self._parted = beginning(self._begun + text), False
            else:
                if isinstance(item, Mark):
                    self._turn.particle(item)
                self._parted = bool(self._begun)

    def _flush_text(self) -> None:
        """Gives out what was held back: behind a control token nothing can complete it."""
        if self._bytes:
            self._bytes = b""
            self._turn.drop(DropReason.UNDECODABLE, [BROKEN])
        for part in self._framing.flush():
            source = part.source if isinstance(part, Tag) else part
            if isinstance(part, Tag) and not self._call:
                self._turn.drop(DropReason.FRAMING, [source])
            else:
                self._write(source)
        self._say(self._particles.flush())
        self._parted = bool(self._begun)

    # Framing

    def _passes(self, source: str) -> bool:
        kind, _ = self._vocabulary.meaning(source)
        return kind >= AUDIO or kind == Kind.PAD

    def _tag(self, tag: Tag, spelled: bool) -> None:
        """Framing in text; in a stream of ids, what has an id of its own is only its name here."""
        kind, token = self._vocabulary.meaning(tag.source)
        spelled = spelled and (kind >= AUDIO or self._vocabulary.has_id(tag.source))
        if self._call and (kind not in _HEARD_IN_CALL or spelled != self._call.spelled):
            self._call.add(tag.source)
        elif tag.opens_thought or tag.closes_thought:
            self._control(Kind.THINK_OPEN if tag.opens_thought else Kind.THINK_CLOSE, tag.source)
        elif spelled:
            self._spelled(kind, tag.source)
        elif kind >= AUDIO:
            self._audio(kind - AUDIO, [token])
        else:
            self._others(kind, [tag.source])

    def _spelled(self, kind: int, source: str) -> None:
        self._flush_text()
        if kind == Kind.TOOL_OPEN and not self._call:
            self._open_call("its tag is spelled out", spelled=True)
        elif kind == Kind.TOOL_CLOSE and self._call:
            self._close_call("")
        elif not self._call:
            self._turn.drop(DropReason.FRAMING, [source])

    def _others(self, kind: int, run: list) -> None:
        if kind == Kind.PAD:
            self._turn.pad(run)
        elif kind == Kind.BEYOND:
            self._turn.drop(DropReason.OUT_OF_RANGE, run)
        else:
            for source in run:
                self._control(kind, source)

    def _control(self, kind: int, source: int | str) -> None:
        if self._over():
            return
        self._flush_text()
        if kind == Kind.END:
            self._end(EndReason.STOP)
        elif self._call and kind != Kind.TOOL_CLOSE:
            self._call.spoil(f"{source} stands in it")
        elif kind == Kind.TOOL_OPEN:
            self._open_call(_OUT_OF_PLACE.get(self._state, ""))
        elif kind == Kind.TOOL_CLOSE and self._call:
            self._close_call("")
        elif not self._move(kind):
            self._turn.drop(DropReason.FRAMING, [source])

    def _move(self, kind: int) -> bool:
        """Goes where a control token leads; False if it leads nowhere from here."""
        thinking = self._state is State.THOUGHT
        if kind == Kind.OPEN:
            self._state, self._after_tag = State.SPEECH, False
        elif kind == Kind.CLOSE and thinking:
            self._after_thought = State.TAIL
        elif kind == Kind.CLOSE:
            self._state = State.TAIL
        elif kind == Kind.THINK_OPEN and not thinking:
            self._state, self._after_thought = State.THOUGHT, self._state
        elif kind == Kind.THINK_CLOSE and thinking:
            self._state, self._after_tag = self._after_thought, True
        else:
            return False
        return True

    # Tool calls

    def _open_call(self, problem: str, spelled: bool = False) -> None:
        if self._vocabulary.profile.tools is None:
            problem = problem or f"{self._vocabulary.profile.family} has no tools"
        self._call = OpenCall(self._calls, spelled, problem)
        self._calls += 1
        # Speech that a call has interrupted does not go on: it may well be the rest of the call.
        thinking = self._state is State.THOUGHT
        self._after_call = State.THOUGHT if thinking else State.TAIL
        self._state = State.CALL
        if self._decodes and not problem:
            self._turn.add(ToolCallStarted, self._call.index)

    def _close_call(self, problem: str) -> None:
        call, self._call = self._call, None
        self._state, self._after_tag = self._after_call, True
        if call is None:
            return
        call.spoil(problem)
        if call.tokens and not call.problem:
            self._turn.add(ToolCallUndecoded, call.index, tuple(call.tokens))
            return
        try:
            if call.problem:
                raise Malformed(call.problem)
            form = self._vocabulary.profile.tools or ToolFormat.JSON
            name, arguments = parse_call(call.text, form)
        except Malformed as error:
            source = call.text, tuple(call.tokens)
            self._turn.add(ToolCallMalformed, call.index, str(error), *source)
        else:
            self._turn.add(ToolCallReady, call.index, name, arguments)


_HEARD_IN_CALL = (Kind.TOOL_OPEN, Kind.TOOL_CLOSE, Kind.END)
_OUT_OF_PLACE = {
    State.SPEECH: "it stands inside speech",
    State.THOUGHT: "it stands inside a thought",
}
