"""A speech-text LM that says texts: clauses in, speech tokens out (T1-A1)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from duologue.config import TalkerSection
from duologue.lm.conversation import User
from duologue.lm.engine import Engine
from duologue.lm.say import say
from duologue.lm.vocabulary import Vocabulary
from duologue.talker.config import is_sayable
from duologue.talker.load import before_text, sampling
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
    config: TalkerSection
    clip_voice: str

    async def tokens(
        self, clauses: AsyncGenerator[str, None], name: str, voice: VoicePrompt, seed: int
    ) -> AsyncGenerator[np.ndarray, None]:
        """Speech tokens int32 [n] of the clauses, one after another.

        Closing it aborts the model's request.

        Args:
            clauses: What `speakable_clauses` gave; one without an English letter is left out by
                the embedded model.
            name: Of the voice.
            voice: Its clip goes before each clause where the set-up knows its words.
            seed: The same one draws the same tokens, where the model is the embedded one.

        Raises:
            EngineError: the model or its server failed, or a clause's speech breaks off.
            UsageError: the family cannot speak like this.
        """
        before = before_text(self.config, voice, own_clip=name == self.clip_voice)
        defaults = sampling(self.config)
        async with aclosing(clauses):
            async for clause in clauses:
                if self.config.engine == "embedded":
                    if not is_sayable(clause):
                        continue
                    # Servers have ranges of their own.
                    defaults, seed = replace(defaults, seed=seed), (seed + 1) % 2**64
                items, sounds = [*before, User(clause)], any(map(str.isalnum, clause))
                said = say(self.engine, self.vocabulary, defaults, items, sounds=sounds)
                async with aclosing(said):
                    async for event in said:
                        yield np.array(event.tokens, np.int32)
