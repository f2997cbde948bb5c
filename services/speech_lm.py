"""A speech-text LM as a pipecat service: one stream to text, speech tokens and tool calls."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

import numpy as np
from loguru import logger
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService

from duologue.errors import DuologueError
from duologue.lm.conversation import Answer, Item, estimate, from_messages
from duologue.lm.cursor import HeardCursor
from duologue.lm.demux import Demux
from duologue.lm.engine import Engine, Finish, Ids, Message, Request, Step, TextDelta, ToolCall
from duologue.lm.events import (
    AudioTokens,
    EndReason,
    Event,
    Particle,
    ToolCallMalformed,
    ToolCallReady,
    TurnEnd,
)
from duologue.lm.events import TextDelta as Text
from duologue.lm.modes import Mode
from duologue.lm.templates import prompt_prefix
from duologue.lm.vocabulary import Vocabulary
from duologue.memory import Memory, merge_turns
from processors.frames import SpeechTokensFrame, StreamFrame, ToolCallFrame
from services.lm_settings import lm_settings
from services.raw_prompt import raw_request

_ENDS = {"length": EndReason.CUT, "stop": EndReason.STOP}


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
class _Spoken:
    """An answer's text and speech as generated."""

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


class SpeechLM(LLMService):
    """Streams a model's text and speech; an interruption closes the stream and aborts the request.

    A tool call goes out the moment it is complete, while the speech before it is still playing.
    A malformed one is reported, and neither spoken nor remembered.

    Args:
        engine: The model, shared by sessions.
        vocabulary: Its family, with the tokenizer.
        mode: What it is asked for.
        defaults: Sampling and tools of every request; its prompt is replaced.
        memory: The conversation. It numbers the answers and knows what of them was heard.
        before: Called before each prompt is written.
        decoded: Whether its speech tokens are spoken; if not, a decoupled voice says its text.
        budget: Size of a prompt in tokens beyond which answers are remembered as text, or, in a
            family that knows none without speech, the older half of them not at all.
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        mode: Mode,
        defaults: Request,
        memory: Memory,
        before: Callable[[], None],
        *,
        decoded: bool,
        budget: int = 8192,
    ):
        super().__init__(settings=lm_settings(vocabulary.profile.family, defaults))
        self._engine = engine
        self._vocabulary = vocabulary
        self._mode = mode
        self._defaults = defaults
        self._memory = memory
        self._before = before
        self._decoded = decoded
        self._budget = budget
        self._spoken: dict[int, _Spoken] = {}
        self._pace = 1.0
        books = vocabulary.profile.codebooks
        self._rate_hz = books[-1].rate_hz if books else 0.0

    def can_generate_metrics(self) -> bool:
        """Time to first token, and `SpeechLMMetricsData` for each answer."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Answer each context; pass everything else."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        self._before()
        messages: list[Message] = list(frame.context.messages)  # type: ignore[arg-type]
        start = LLMFullResponseStartFrame()
        turn = start.metadata["turn"] = self._memory.begin()
        try:
            await self.push_frame(start)
            request = self._request(messages)
            await self._answer(turn, request)
        except DuologueError as error:
            await self.push_error(str(error), exception=error)
        finally:
            await self.push_frame(LLMFullResponseEndFrame())

    def _request(self, messages: list[Message]) -> Request:
        self._spoken = {t: s for t, s in self._spoken.items() if t in self._memory.answers}
        profile = self._vocabulary.profile
        items = self._conversation(messages)
        if estimate(profile, items) > self._budget:
            # Much at once: what is dropped bit by bit leaves the server no prefix to keep.
            keep = 0 if profile.text_history else len(self._spoken) // 2
            newest = sorted(self._spoken)[len(self._spoken) - keep :]
            self._spoken = {turn: self._spoken[turn] for turn in newest}
            items = self._conversation(messages)
        return raw_request(self._engine, self._vocabulary, self._defaults, items, self._mode)

    def _conversation(self, messages: Sequence[Message]) -> list[Item]:
        merged = merge_turns(list(messages))
        turns = {id(message): turn for turn, message in self._memory.answers.items()}
        items = []
        for message, item in zip(merged, from_messages(merged), strict=True):
            turn = turns.get(id(message), 0)
            spoken = self._spoken.get(turn)
            if spoken and isinstance(item, Answer):
                played = round(self._memory.played_s(turn) * self._rate_hz)
                item = spoken.complete(item, played if self._decoded else None)
            if self._remembers(item):
                items.append(item)
        return items

    def _remembers(self, item: Item) -> bool:
        """Some families know no answer without its speech."""
        silent = isinstance(item, Answer) and not (item.audio or item.calls)
        return self._vocabulary.profile.text_history or not silent

    async def _answer(self, turn: int, request: Request) -> None:
        profile = self._vocabulary.profile
        prefix = prompt_prefix(profile, self._mode)
        demux = Demux(self._vocabulary, turn_id=turn, prefix=prefix)
        writer = _Writer(self, demux, turn)
        if profile.codebooks and self._mode.audio_out:
            self._spoken[turn] = writer.spoken
        if self._decoded:
            cursor = writer.cursor = HeardCursor(profile.codebooks[-1], pace=self._pace)
            self._memory.follow(
                turn,
                lambda seconds: cursor.chars_at(seconds * self._rate_hz),
                lambda: writer.spoken.tokens / self._rate_hz if writer.whole else inf,
            )
        await self.start_ttfb_metrics()
        async with aclosing(self._engine.stream(request)) as steps:  # type: ignore[type-var]
            await writer.write(steps)
        if writer.cursor is not None:
            self._pace = writer.cursor.pace
        await self.push_frame(MetricsFrame(data=[writer.metrics(self.name)]))


class _Writer:
    """One answer's steps to frames."""

    def __init__(self, service: SpeechLM, demux: Demux, turn: int):
        self.cursor: HeardCursor | None = None
        self.spoken = _Spoken([[] for _ in service._vocabulary.profile.codebooks])
        self._service = service
        self._demux = demux
        self._turn = turn
        self._books = [book.name for book in service._vocabulary.profile.codebooks]
        self._speaks = service._decoded
        self._begin_s = monotonic()
        self._first_s = self._last_s = 0.0
        self._dropped = 0
        self.whole = False

    async def write(self, steps: AsyncIterator[Step]) -> None:
        """Take the stream to its end, or to where the demultiplexer ends it."""
        reason = EndReason.CUT
        async for step in steps:
            await self._service.stop_ttfb_metrics()
            if isinstance(step, Ids):
                await self._push(self._demux.push(step.ids))
            elif isinstance(step, TextDelta):
                await self._push(self._demux.push_text(step.text))
            elif isinstance(step, ToolCall):
                await self._service.push_frame(ToolCallFrame(step))
            elif isinstance(step, Finish):
                reason = _ENDS.get(step.reason, EndReason.STOP)
            if self._demux.ended:
                break
        await self._push(self._demux.finish(reason))

    def metrics(self, processor: str) -> SpeechLMMetricsData:
        """Of the whole answer."""
        count = self.spoken.tokens
        lasted_s = self._last_s - self._first_s
        return SpeechLMMetricsData(
            processor=processor,
            model=self._service._vocabulary.profile.family,
            first_audio_s=self._first_s - self._begin_s if count else None,
            audio_tokens=count,
            tokens_per_s=(count - 1) / lasted_s if lasted_s > 0 else 0.0,
            dropped=self._dropped,
        )

    async def _push(self, events: list[Event]) -> None:
        for event in events:
            if self.cursor is not None:
                self.cursor.feed(event)
            if isinstance(event, AudioTokens):
                await self._push_audio(event)
            else:
                await self._push_other(event)

    async def _push_other(self, event: Event) -> None:
        service = self._service
        match event:
            case Text(text=text) if text:
                self.spoken.text += text
                await service.push_frame(StreamFrame(text, spoken=self._speaks))
            case Particle(mark=mark):
                await service.push_frame(StreamFrame(mark, spoken=self._speaks))
            case ToolCallReady(index=index, name=name, arguments=arguments):
                call = ToolCall(f"call_{index}", name, arguments)
                await service.push_frame(ToolCallFrame(call))
            case ToolCallMalformed(problem=problem, source=source):
                message = f"the model's tool call cannot be read: {problem}: {source!r}"
                await service.push_error(message)
            case TurnEnd():
                self._end(event)

    async def _push_audio(self, event: AudioTokens) -> None:
        self.spoken.codes[self._books.index(event.codebook)] += event.tokens
        if event.codebook == self._books[-1]:
            self._last_s = monotonic()
            self._first_s = self._first_s or self._last_s
            tokens = np.array(event.tokens, np.int32)
            await self._service.push_frame(SpeechTokensFrame(turn=self._turn, tokens=tokens))

    def _end(self, event: TurnEnd) -> None:
        self._dropped = sum(event.dropped.values())
        self.whole = event.reason is EndReason.STOP and bool(self.spoken.tokens)
        if self._dropped or event.reason in (EndReason.LOOP, EndReason.IDLE):
            logger.warning(f"turn {self._turn} ended ({event.reason}), dropped: {event.dropped}")
