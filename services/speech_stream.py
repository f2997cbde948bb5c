"""A speech-text LM's stream read into frames: a thought of its own, or an answer."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np
from loguru import logger
from pipecat.frames.frames import LLMThoughtEndFrame, LLMThoughtStartFrame, LLMThoughtTextFrame
from pipecat.metrics.metrics import MetricsData
from pipecat.services.llm_service import LLMService

from duologue.lm.chunks import WHOLE
from duologue.lm.conversation import Answer
from duologue.lm.cursor import HeardCursor
from duologue.lm.demux import Demux
from duologue.lm.engine import Finish, Ids, MalformedCall, Step, TextDelta, ToolCall
from duologue.lm.events import (
    AudioTokens,
    Dropped,
    EndReason,
    Event,
    Particle,
    Thought,
    ToolCallMalformed,
    ToolCallReady,
    TurnEnd,
)
from duologue.lm.events import TextDelta as Text
from duologue.lm.formats import Profile
from duologue.particles import Particle as Mark
from processors.frames import SpeechTokensFrame, StreamFrame, ToolCallFrame


class SpeechLMMetricsData(MetricsData):
    """How one answer was generated.

    Parameters:
        first_audio_s: From the request to the first speech token; None without any.
        audio_tokens: Speech tokens.
        tokens_per_s: Speech tokens a second from the first to the last; 0 with fewer than two.
        dropped: What of the stream reached nobody.
    """

    first_audio_s: float | None
    audio_tokens: int
    tokens_per_s: float
    dropped: int


@dataclass(slots=True)
class Spoken:
    """An answer's speech as generated, and its text; of speech that is played, what it says."""

    codes: list[list[int]]
    text: str = ""

    @property
    def tokens(self) -> int:
        """Of the last codebook, which tells the time."""
        return len(self.codes[-1]) if self.codes else 0

    def complete(self, answer: Answer, heard: int | None) -> Answer:
        """The answer as remembered, with its speech.

        Args:
            answer: Its text, cut to what was heard.
            heard: Tokens of the last codebook that were played; None if another voice spoke.
        """
        whole = replace(answer, audio=tuple(map(tuple, self.codes)))
        chars, length = len(answer.text), len(self.text.rstrip())
        if chars >= length:
            return whole
        if heard is None:
            heard = self.tokens * chars // length
        return whole.keep(chars, heard)


class StreamReader(ABC):
    """Reads one stream; what is thought in it goes out as pipecat's frames of a thought.

    Args:
        service: Pushes the frames.
        demux: The stream's.

    Attributes:
        over: Whether what is still to come is of no use.
    """

    def __init__(self, service: LLMService, demux: Demux):
        self.over = False
        self._service = service
        self._demux = demux
        self._thinks = False

    async def read(self, steps: AsyncIterator[Step]) -> None:
        """Take the stream to its end, or to where the demultiplexer ends it."""
        try:
            await self._take(self._demux.finish(await self._until_over(steps)))
        finally:
            await self._stop_thinking()

    async def _until_over(self, steps: AsyncIterator[Step]) -> EndReason:
        reason = EndReason.CUT
        async for step in steps:
            await self._service.stop_ttfb_metrics()
            if isinstance(step, Ids):
                await self._take(self._demux.push(step.ids))
            elif isinstance(step, TextDelta):
                await self._take(self._demux.push_text(step.text))
            elif isinstance(step, ToolCall | MalformedCall):
                await self._take(self._demux.push_call(step))
            elif isinstance(step, Finish):
                reason = EndReason.STOP if step.reason in WHOLE else EndReason.CUT
            if self._demux.ended or self.over:
                break
        return reason

    async def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Thought):
                await self._think(event.text)
            elif not isinstance(event, Dropped):
                await self._stop_thinking()
                await self._push(event)

    async def _think(self, text: str) -> None:
        if not self._thinks:
            self._thinks = True
            await self._service.push_frame(LLMThoughtStartFrame())
        await self._service.push_frame(LLMThoughtTextFrame(text))

    async def _stop_thinking(self) -> None:
        if self._thinks:
            self._thinks = False
            await self._service.push_frame(LLMThoughtEndFrame())

    @abstractmethod
    async def _push(self, event: Event) -> None:
        """Take an event that is no thought."""


class ThoughtReader(StreamReader):
    """Reads what a model thinks before it answers; nothing else of the stream is of use.

    Attributes:
        text: The thought; "" once it has turned out to be a loop.
    """

    def __init__(self, service: LLMService, demux: Demux):
        super().__init__(service, demux)
        self.text = ""

    async def _think(self, text: str) -> None:
        if not self.over:
            self.text += text
            await super()._think(text)

    async def _push(self, event: Event) -> None:
        if isinstance(event, TurnEnd) and event.reason in (EndReason.LOOP, EndReason.IDLE):
            logger.warning(f"a thought that leads nowhere ({event.reason}) is left out")
            self.text = ""
        # A server that knows no stop text goes on behind the thought.
        self.over = True


class AnswerReader(StreamReader):
    """Reads an answer.

    Its first text waits for speech: a model that gives none is said by the decoupled voice.

    Args:
        service: Pushes the frames.
        demux: The stream's.
        profile: The family.
        turn: The answer's number.
        cursor: Follows its speech; None if a decoupled voice says its text.

    Attributes:
        spoken: What it says.
        whole: Whether its speech has come to its end.
    """

    def __init__(
        self,
        service: LLMService,
        demux: Demux,
        profile: Profile,
        turn: int,
        cursor: HeardCursor | None,
    ):
        super().__init__(service, demux)
        self.spoken = Spoken([[] for _ in profile.codebooks])
        self.whole = False
        self._profile = profile
        self._turn = turn
        self._cursor = cursor
        self._books = [book.name for book in profile.codebooks]
        self._begin_s = monotonic()
        self._first_s = self._last_s = 0.0
        self._dropped = 0
        self._voiced = True
        self._waiting: list[str | Mark] = []
        # Whether there is anything to hear, to do or to report.
        self._answers = False

    def metrics(self, processor: str) -> SpeechLMMetricsData:
        """Of the whole answer."""
        count = self.spoken.tokens
        lasted_s = self._last_s - self._first_s
        return SpeechLMMetricsData(
            processor=processor,
            model=self._profile.family,
            first_audio_s=self._first_s - self._begin_s if count else None,
            audio_tokens=count,
            tokens_per_s=(count - 1) / lasted_s if lasted_s > 0 else 0.0,
            dropped=self._dropped,
        )

    async def _push(self, event: Event) -> None:
        if self._cursor is not None:
            self._cursor.feed(event)
        match event:
            case AudioTokens():
                await self._push_audio(event)
            case Text(text=text, voiced=voiced) if text:
                self._voiced = voiced
                await self._push_item(text)
            case Particle(mark=mark):
                await self._push_item(mark)
            case ToolCallReady(index=index, name=name, arguments=arguments):
                self._answers = True
                await self._release(spoken=False)
                call = ToolCall(f"call_{index}", name, arguments)
                await self._service.push_frame(ToolCallFrame(call))
            case ToolCallMalformed(problem=problem, source=source):
                self._answers = True
                await self._service.push_error(str(MalformedCall(problem, source)))
            case TurnEnd():
                await self._end(event)

    async def _push_item(self, item: str | Mark) -> None:
        if isinstance(item, str) and (self._voiced or self._cursor is None):
            self.spoken.text += item
        spoken = self._voiced and self._cursor is not None
        self._answers |= not isinstance(item, str) or not item.isspace()
        self._waiting.append(item)
        if self._answers and (not spoken or self.spoken.tokens):
            await self._release(spoken)

    async def _release(self, spoken: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            await self._service.push_frame(StreamFrame(item, spoken=spoken))

    async def _push_audio(self, event: AudioTokens) -> None:
        self.spoken.codes[self._books.index(event.codebook)] += event.tokens
        if event.codebook == self._books[-1]:
            self._last_s = monotonic()
            self._answers |= self._cursor is not None
            self._first_s = self._first_s or self._last_s
            await self._release(spoken=True)
            tokens = np.array(event.tokens, np.int32)
            await self._service.push_frame(SpeechTokensFrame(turn=self._turn, tokens=tokens))

    async def _end(self, event: TurnEnd) -> None:
        if self._answers:
            await self._release(spoken=False)
        else:
            facts = [str(event.reason), *(f"{n} {why}" for why, n in event.dropped.items())]
            await self._service.push_error(f"the model has given no answer ({', '.join(facts)})")
        self._dropped = sum(event.dropped.values())
        self.whole = event.reason is EndReason.STOP and bool(self.spoken.tokens)
        if self._dropped or event.reason in (EndReason.LOOP, EndReason.IDLE):
            logger.warning(f"turn {self._turn} ended ({event.reason}), dropped: {event.dropped}")
