"""A speech-text LM that says texts: clauses in, speech tokens out (T1-A1)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from duologue.config import TalkerConfig
from duologue.lm.conversation import Item, Reference, System, User
from duologue.lm.demux import Demux
from duologue.lm.engine import Engine, Ids, Request, TextDelta
from duologue.lm.events import AudioTokens, EndReason
from duologue.lm.modes import Mode
from duologue.lm.prompt import IdsPart
from duologue.lm.templates import prompt_ids, prompt_prefix, render
from duologue.lm.vocabulary import Vocabulary
from duologue.token2wav.step import VoicePrompt


@dataclass(frozen=True, slots=True)
class Talker:
    """The model, its family, and how it is asked.

    Attributes:
        engine: Shared by calls.
        vocabulary: What the ids mean.
        config: The set-up's `talker`.
        clip_voice: The voice whose words `config.clip_text` are.
    """

    engine: Engine
    vocabulary: Vocabulary
    config: TalkerConfig
    clip_voice: str

    async def tokens(
        self, clauses: AsyncGenerator[str, None], name: str, voice: VoicePrompt
    ) -> AsyncGenerator[np.ndarray, None]:
        """Speech tokens int32 [n] of the clauses, one after another.

        Closing it aborts the model's request.

        Args:
            clauses: What `speakable_clauses` gave.
            name: Of the voice.
            voice: Its clip goes before each clause where the set-up knows its words.

        Raises:
            EngineError: the model or its server failed.
            UsageError: the family cannot speak like this.
        """
        before = self._before(name, voice)
        async with aclosing(clauses):
            async for clause in clauses:
                async with aclosing(self._say([*before, User(clause)])) as runs:
                    async for run in runs:
                        yield run

    def _before(self, name: str, voice: VoicePrompt) -> list[Item]:
        items: list[Item] = []
        if self.config.instruction:
            items.append(System(self.config.instruction))
        if self.config.clip_text and name == self.clip_voice:
            items.append(Reference((tuple(voice.tokens.tolist()),), self.config.clip_text))
        return items

    async def _say(self, items: Sequence[Item]) -> AsyncGenerator[np.ndarray, None]:
        book = self.vocabulary.profile.codebooks[-1].name
        prefix = prompt_prefix(self.vocabulary.profile, Mode.T1_A1)
        demux = Demux(self.vocabulary, turn_id=0, prefix=prefix)

        def heard(events):
            runs = (e for e in events if isinstance(e, AudioTokens) and e.codebook == book)
            return [np.array(run.tokens, np.int32) for run in runs]

        async with aclosing(self.engine.stream(self._request(items))) as steps:  # type: ignore[type-var]
            async for step in steps:
                if isinstance(step, Ids):
                    events = demux.push(step.ids)
                else:
                    events = demux.push_text(step.text) if isinstance(step, TextDelta) else []
                for run in heard(events):
                    yield run
                if demux.ended:
                    return
        for run in heard(demux.finish(EndReason.STOP)):
            yield run

    def _request(self, items: Sequence[Item]) -> Request:
        """A prompt of ids where the engine takes some and a tokenizer makes them."""
        parts = render(self.vocabulary, items, Mode.T1_A1, [])
        own_ids = any(book.token is None for book in self.vocabulary.profile.codebooks)
        takes_ids = self.engine.capabilities.prompt_ids and not own_ids
        if self.vocabulary.vocab is not None and takes_ids:
            parts = (IdsPart(tuple(prompt_ids(self.vocabulary, parts))),)
        return Request(
            max_tokens=self.config.max_tokens,
            temperature=self.config.temperature,
            repeat_penalty=self.config.repeat_penalty,
            parts=parts,
        )
