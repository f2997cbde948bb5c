"""A speech-text LM as a pipecat service: one stream to text, speech tokens and tool calls."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from math import inf

from loguru import logger
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    MetricsFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService

from duologue.errors import DuologueError
from duologue.lm.conversation import (
    Answer,
    CallResult,
    Item,
    User,
    estimate,
    from_messages,
    in_turns,
    results_last,
)
from duologue.lm.cursor import HeardCursor
from duologue.lm.demux import Demux
from duologue.lm.engine import Engine, Message, Request
from duologue.lm.hearing import Hearing
from duologue.lm.modes import Mode
from duologue.lm.raw import raw_request
from duologue.lm.templates import prompt_prefix, render_messages, thought_end
from duologue.lm.vocabulary import Vocabulary
from duologue.memory import Memory
from processors.frames import UserSpeechFrame
from services.lm_settings import lm_settings
from services.speech_stream import AnswerReader, Spoken, StreamReader, ThoughtReader


class SpeechLM(LLMService):
    """Streams a model's text and speech; an interruption closes the stream and aborts the request.

    A tool call goes out the moment it is complete, while the speech before it is still playing.
    A malformed one is reported, and neither spoken nor remembered.

    A model that thinks first is asked twice. Its thought goes out as pipecat's frames of a thought,
    and is neither spoken nor remembered.

    In a mode that hears, the engine takes chat messages, and the model is given the sound of the
    user's turn, the recogniser's words only where there is none: a turn beyond `Hearing.longest_s`
    is read as a whole.

    Args:
        engine: The model, shared by sessions.
        vocabulary: Its family, with the tokenizer.
        mode: What it is asked for.
        defaults: Sampling and tools of every request; its prompt is replaced.
        memory: The conversation. It numbers the answers and knows what of them was heard.
        before: Called before each prompt is written.
        decoded: Whether its speech tokens are spoken; if not, a decoupled voice says its text.
        budget: Size of a prompt in tokens beyond which answers are remembered as text, or, in a
            family that knows none without speech, the older half of them not at all, and what the
            user said before as words.
        hearing: Keeps the user's sound; needed in modes that hear.
        past_sound: Whether what has been answered is still given as sound.
        max_thought: Most tokens of a thought.
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
        hearing: Hearing | None = None,
        past_sound: bool = False,
        max_thought: int = 512,
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
        self._hearing = hearing
        self._past_sound = past_sound
        self._max_thought = max_thought
        self._spoken: dict[int, Spoken] = {}
        # Of the newest prompt, the calls whose results it held.
        self._told: set[str] = set()
        self._pace = 1.0
        books = vocabulary.profile.codebooks
        self._rate_hz = books[-1].rate_hz if books else 0.0

    def can_generate_metrics(self) -> bool:
        """Time to first token, and `SpeechLMMetricsData` for each answer."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection):
        """Answer each context, keep the user's sound; pass everything else."""
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            await self._respond(frame)
        elif isinstance(frame, UserSpeechFrame) and self._hearing:
            self._hearing.hear(frame.text, frame.audio, frame.rate_hz)
        else:
            await self.push_frame(frame, direction)

    async def _respond(self, frame: LLMContextFrame) -> None:
        self._before()
        messages: list[Message] = list(frame.context.messages)  # type: ignore[arg-type]
        start = LLMFullResponseStartFrame()
        turn = start.metadata["turn"] = self._memory.begin()
        try:
            await self.push_frame(start)
            items = self._items(messages, frame.speculation)
            mode = self._mode_for(items)
            await self.start_ttfb_metrics()
            thought = None
            if self._vocabulary.profile.thinks:
                thought = await self._think(turn, self._request(items, mode))
            await self._answer(turn, mode, self._request(items, mode, thought), thought)
        except DuologueError as error:
            await self.push_error(str(error), exception=error)
        finally:
            await self.push_frame(LLMFullResponseEndFrame())

    def _items(self, messages: list[Message], provisional: bool) -> list[Item]:
        """The conversation, within the budget."""
        self._spoken = {t: s for t, s in self._spoken.items() if t in self._memory.answers}
        profile = self._vocabulary.profile
        items = self._conversation(messages, provisional, self._past_sound)
        if estimate(profile, items) > self._budget:
            # Much at once: what is dropped bit by bit leaves the server no prefix to keep.
            keep = 0 if profile.text_history else len(self._spoken) // 2
            newest = sorted(self._spoken)[len(self._spoken) - keep :]
            self._spoken = {turn: self._spoken[turn] for turn in newest}
            items = self._conversation(messages, provisional, False)
        self._told = {item.call_id for item in items if isinstance(item, CallResult)}
        return items

    def _conversation(
        self, messages: Sequence[Message], provisional: bool, past_sound: bool
    ) -> list[Item]:
        turns = {id(message): turn for turn, message in self._memory.answers.items()}
        items = list(from_messages(messages))
        if self._hearing:
            sounds = self._hearing.attend(messages, past=past_sound, provisional=provisional)
            for place, sound in enumerate(sounds):
                if isinstance(item := items[place], User):
                    items[place] = replace(item, audio=sound)
        for place, message in enumerate(messages):
            turn = turns.get(id(message), 0)
            spoken = self._spoken.get(turn)
            if spoken and isinstance(item := items[place], Answer):
                played = round(self._memory.played_s(turn) * self._rate_hz)
                items[place] = spoken.complete(item, played if self._decoded else None)
        kept = [item for item in in_turns(items) if self._remembers(item)]
        return results_last(kept, self._told)

    def _remembers(self, item: Item) -> bool:
        """Some families know no answer without its speech."""
        silent = isinstance(item, Answer) and not (item.audio or item.calls)
        return self._vocabulary.profile.text_history or not silent

    def _mode_for(self, items: Sequence[Item]) -> Mode:
        """As set up; but what the user said without a sound to hear is read."""
        users = [item for item in items if isinstance(item, User)]
        if not self._mode.audio_in or (users and users[-1].audio):
            return self._mode
        logger.warning(
            "the model reads this turn: its sound is longer than speech_lm.longest_turn_s, or none "
            "of it belongs to the words"
        )
        return self._mode.read

    def _request(self, items: Sequence[Item], mode: Mode, thought: str | None = None) -> Request:
        if not self._hearing:
            return raw_request(self._engine, self._vocabulary, self._defaults, items, mode, thought)
        messages = render_messages(
            self._vocabulary, items, mode, self._defaults.tools, thought=thought
        )
        lossy = self._vocabulary.profile.loses_arguments
        return replace(self._defaults, messages=messages, loses_arguments=lossy)

    async def _think(self, turn: int, request: Request) -> str:
        """What the model thinks before it answers."""
        profile = self._vocabulary.profile
        demux = Demux(self._vocabulary, turn_id=turn, prefix=prompt_prefix(profile, self._mode))
        reader = ThoughtReader(self, demux)
        stop, stop_ids = thought_end(self._vocabulary)
        await self._read(
            reader, replace(request, max_tokens=self._max_thought, stop=stop, stop_ids=stop_ids)
        )
        return reader.text

    async def _answer(self, turn: int, mode: Mode, request: Request, thought: str | None) -> None:
        profile = self._vocabulary.profile
        prefix = prompt_prefix(profile, mode, thought=thought)
        demux = Demux(self._vocabulary, turn_id=turn, prefix=prefix)
        cursor = HeardCursor(profile.codebooks[-1], pace=self._pace) if self._decoded else None
        reader = AnswerReader(self, demux, profile, turn, cursor)
        if profile.codebooks and mode.audio_out:
            self._spoken[turn] = reader.spoken
        if cursor is not None:
            self._memory.follow(
                turn,
                lambda seconds: cursor.chars_at(seconds * self._rate_hz),
                lambda: reader.spoken.tokens / self._rate_hz if reader.whole else inf,
            )
        await self._read(reader, request)
        if cursor is not None:
            self._pace = cursor.pace
        await self.push_frame(MetricsFrame(data=[reader.metrics(self.name)]))

    async def _read(self, reader: StreamReader, request: Request) -> None:
        async with aclosing(self._engine.stream(request)) as steps:  # type: ignore[type-var]
            await reader.read(steps)
