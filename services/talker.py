"""A speech-text LM as the voice of another model's text (T1-A1): text in, speech tokens out."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

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
from duologue.lm.conversation import Item, Style, System, User
from duologue.lm.cursor import HeardCursor
from duologue.lm.engine import Engine, Request
from duologue.lm.events import EndReason, Particle, TurnEnd
from duologue.lm.events import TextDelta as SpokenText
from duologue.lm.modes import Mode
from duologue.lm.say import say
from duologue.lm.vocabulary import Vocabulary
from duologue.memory import Memory
from duologue.particles import Composer, Text, Utterance, talker_renderer
from duologue.particles import Particle as Mark
from duologue.particles.renderers.cosyvoice import END_OF_PROMPT
from duologue.text import Clause, ClauseSplitter, Speaker
from processors.frames import AnswerTextFrame, ParticleFrame, SpeechTokensFrame, StreamFrame

INSTRUCTION = "instruct_text"
STYLE = frozenset(field.name for field in fields(Style))


@dataclass(slots=True)
class _Answer:
    """How far the speech of an answer has come."""

    tokens: int = 0
    failed: bool = False
    whole: bool = False


class Talker(AIService):
    """Turns an answer's text to speech tokens, clause by clause, for token2wav.

    Particles become the family's own marks where it has some, which are neither shown nor
    remembered. A mood for which a family takes an instruction stands in the prompt in place of the
    speaker, whose sound the decoder has in any case.

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
        self._memory, self._speaker, self._lang = memory, tuple(speaker), lang
        styled = any(isinstance(item, Style) for item in speaker)
        self._renderer = talker_renderer(family, {INSTRUCTION} | (STYLE if styled else set()))
        self._book = vocabulary.profile.codebooks[-1]
        self._pace = 1.0
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
            self._text += frame.text
            await self._speak(self._clauses.feed(frame.text))
            return
        elif isinstance(frame, StreamFrame) and isinstance(frame.item, Mark):
            self._marks.append((len(self._text), frame.item))
            return
        elif isinstance(frame, LLMFullResponseEndFrame):
            await self._speak(self._clauses.flush())
            await self._speak_to(len(self._text))
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
        self._composer = Composer(self._renderer, Speaker(self._lang).say)
        self._text, self._said = "", 0
        # Those that stand behind what was said, with their places in the answer's text.
        self._marks: deque[tuple[int, Mark]] = deque()
        self._unsaid: tuple[Text | Mark, ...] = ()
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
            await self._speak_to(clause.end)

    async def _speak_to(self, end: int) -> None:
        """Say the answer's text up to a place, the marks there included."""
        marked = list(self._marked(end))
        utterances = self._composer.compose(marked)
        await self._tell(marked, utterances)
        for utterance in utterances:
            if utterance.text and not self._answer.failed:
                await self._try(utterance)

    def _marked(self, end: int) -> Iterator[Text | Mark]:
        at, self._said = self._said, end
        while self._marks and self._marks[0][0] <= end:
            place, mark = self._marks.popleft()
            yield Text(self._text[at:place], at, place)
            yield replace(mark, start=place, end=place)
            at = place
        yield Text(self._text[at:end], at, end)

    async def _tell(self, marked: list[Text | Mark], utterances: list[Utterance]) -> None:
        """Tell which marks are expressed."""
        stripped = {(mark.start, mark.source) for said in utterances for mark in said.stripped}
        for mark in marked:
            if isinstance(mark, Mark) and not mark.closes:
                shown = not self._answer.failed and (mark.start, mark.source) not in stripped
                frame = ParticleFrame(turn=self._turn, particle=mark, rendered=shown)
                await self.push_frame(frame)

    async def _try(self, utterance: Utterance) -> None:
        self._unsaid = utterance.heard
        try:
            await self._say(utterance)
        except DuologueError as error:
            # What comes behind a gap would make no sense.
            self._answer.failed = True
            await self.push_error(str(error), exception=error)

    async def _say(self, utterance: Utterance) -> None:
        items = (*self._before(utterance.parameters), User(utterance.text))
        sounds = any(map(str.isalnum, utterance.words))
        said = say(
            self._engine,
            self._vocabulary,
            self._defaults,
            items,
            turn_id=self._turn,
            sounds=sounds,
        )
        await self.start_ttfb_metrics()
        async with aclosing(said):
            async for event in said:
                await self.stop_ttfb_metrics()
                self._follow_text()
                self._cursor.feed(event)
                self._answer.tokens += len(event.tokens)
                tokens = np.array(event.tokens, np.int32)
                await self.push_frame(SpeechTokensFrame(turn=self._turn, tokens=tokens))

    def _before(self, parameters: Mapping[str, Any]) -> Sequence[Item]:
        """What stands before the text, with what its marks ask for."""
        if INSTRUCTION in parameters:
            return (System(parameters[INSTRUCTION].removesuffix(END_OF_PROMPT)),)
        return [
            replace(item, **parameters) if isinstance(item, Style) else item
            for item in self._speaker
        ]

    def _follow_text(self) -> None:
        """Give the cursor what the next tokens say."""
        unsaid, self._unsaid = self._unsaid, ()
        for item in unsaid:
            place = self._turn, 0, item.start, 0
            if isinstance(item, Text):
                self._cursor.feed(SpokenText(*place, item.text, (), True))
            else:
                self._cursor.feed(Particle(*place, item))
