"""A speech-text LM as the voice of another model's text (T1-A1): text in, speech tokens out."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import inf

import numpy as np
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.ai_service import AIService
from pipecat.services.settings import TTSSettings

from duologue.errors import DuologueError
from duologue.lm.conversation import Item, User
from duologue.lm.cursor import HeardCursor
from duologue.lm.demux import Demux
from duologue.lm.engine import Engine, Ids, Request, TextDelta
from duologue.lm.events import AudioTokens, EndReason, Event, TurnEnd
from duologue.lm.events import TextDelta as Text
from duologue.lm.modes import Mode
from duologue.lm.templates import prompt_prefix
from duologue.lm.vocabulary import Vocabulary
from duologue.memory import Memory
from duologue.text import Clause, ClauseSplitter, Speaker
from processors.frames import AnswerTextFrame, SpeechTokensFrame
from services.raw_prompt import raw_request


@dataclass(slots=True)
class _Answer:
    """How far the speech of an answer has come."""

    tokens: int = 0
    failed: bool = False
    whole: bool = False


class Talker(AIService):
    """Turns an answer's text to speech tokens, clause by clause, for token2wav.

    Args:
        engine: The model, shared by sessions.
        vocabulary: Its family, with the tokenizer.
        defaults: Sampling of every request; its prompt is replaced.
        memory: Told how to find the words in the sound.
        speaker: What stands before each clause in a prompt: a Reference, a Style or a System.
        lang: Language of the text, "en" or "zh".

    Raises:
        UsageError: the family does not speak text.
    """

    def __init__(
        self,
        engine: Engine,
        vocabulary: Vocabulary,
        defaults: Request,
        memory: Memory,
        *,
        speaker: Sequence[Item] = (),
        lang: str = "en",
    ):
        family = vocabulary.profile.family
        super().__init__(settings=TTSSettings(model=family, voice=None, language=lang))
        vocabulary.profile.check_mode(Mode.T1_A1)
        self._engine, self._vocabulary, self._defaults = engine, vocabulary, defaults
        self._memory, self._before, self._lang = memory, tuple(speaker), lang
        self._book = vocabulary.profile.codebooks[-1]
        self._prefix = prompt_prefix(vocabulary.profile, Mode.T1_A1)
        self._pace = 1.0
        self._clause: Clause | None = None
        self._begin(0)

    def can_generate_metrics(self) -> bool:
        """Time to first speech token is reported."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Speak answers; pass everything else."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame):
            self._begin(frame.metadata.get("turn", 0))
            self._follow()
        elif isinstance(frame, AnswerTextFrame):
            await self._speak(self._clauses.feed(frame.text))
            return
        elif isinstance(frame, LLMFullResponseEndFrame):
            await self._speak(self._clauses.flush())
            if not self._answer.failed:
                self._answer.whole = True
                self._cursor.feed(TurnEnd(self._turn, 0, 0, 0, EndReason.STOP, 0, {}))
            self._pace = self._cursor.pace
        elif isinstance(frame, InterruptionFrame):
            self._begin(self._turn)
        await self.push_frame(frame, direction)

    def _begin(self, turn: int) -> None:
        self._turn = turn
        self._clauses = ClauseSplitter(self._lang)
        self._speaker = Speaker(self._lang)
        self._cursor = HeardCursor(self._book, pace=self._pace, aligned=True)
        self._answer = _Answer()

    def _follow(self) -> None:
        cursor, answer, rate_hz = self._cursor, self._answer, self._book.rate_hz
        self._memory.follow(
            self._turn,
            lambda seconds: cursor.chars_at(seconds * rate_hz),
            lambda: answer.tokens / rate_hz if answer.whole else inf,
        )

    async def _speak(self, clauses: list[Clause]) -> None:
        for clause in clauses:
            spoken = self._speaker.say(clause.text)
            if not spoken or self._answer.failed:
                continue
            self._clause = clause
            try:
                await self._say(spoken)
            except DuologueError as error:
                # What comes behind a gap would make no sense.
                self._answer.failed = True
                await self.push_error(str(error), exception=error)

    async def _say(self, text: str) -> None:
        request = raw_request(
            self._engine, self._vocabulary, self._defaults, (*self._before, User(text)), Mode.T1_A1
        )
        demux = Demux(self._vocabulary, turn_id=self._turn, prefix=self._prefix)
        await self.start_ttfb_metrics()
        async with aclosing(self._engine.stream(request)) as steps:  # type: ignore[type-var]
            async for step in steps:
                if isinstance(step, Ids):
                    await self._push(demux.push(step.ids))
                elif isinstance(step, TextDelta):
                    await self._push(demux.push_text(step.text))
                if demux.ended:
                    return
        await self._push(demux.finish(EndReason.STOP))

    async def _push(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, AudioTokens) and event.codebook == self._book.name:
                await self.stop_ttfb_metrics()
                if said := self._clause:
                    self._clause = None
                    self._cursor.feed(Text(self._turn, 0, said.start, 0, said.text, (), True))
                self._cursor.feed(event)
                self._answer.tokens += len(event.tokens)
                tokens = np.array(event.tokens, np.int32)
                await self.push_frame(SpeechTokensFrame(turn=self._turn, tokens=tokens))
