"""A whole text in the embedded voice, and what each stage of it cost."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from duologue.embedded.package import Package
from duologue.errors import InputError
from duologue.lm.engine import Ids, Request
from duologue.lm.formats.duologue_talker import DUOLOGUE_TALKER
from duologue.lm.prompt import TextPart
from duologue.particles import Composer, Particle, Scanner, Text, talker_renderer
from duologue.talker.config import END, FIRST_CODE, TEMPERATURE, is_sayable
from duologue.talker.engine import PIECES, TalkerEngine
from duologue.text import ClauseSplitter, Speaker
from duologue.token2wav.stream import Utterance


@dataclass(frozen=True, slots=True)
class Spoken:
    """A text that was said.

    Attributes:
        samples: float32 [n].
        rate_hz: Of the samples.
        audio_tokens: Speech tokens, all clauses together.
        cut: Clauses whose speech did not end by itself.
        seconds: Time that each stage took.
    """

    samples: np.ndarray
    rate_hz: int
    audio_tokens: int
    cut: int
    seconds: dict[str, float]

    def facts(self) -> dict[str, Any]:
        """What a program wants to know of it."""
        audio_s = len(self.samples) / self.rate_hz
        return {
            "audio_s": round(audio_s, 3),
            "rate_hz": self.rate_hz,
            "audio_tokens": self.audio_tokens,
            "cut_clauses": self.cut,
            "rtf": {stage: seconds / audio_s for stage, seconds in self.seconds.items()},
        }


async def speak(
    package: Package, text: str, *, seed: int = 0, temperature: float = TEMPERATURE
) -> Spoken:
    """Say a text, clause by clause and in chunks, as in a conversation.

    Args:
        package: The voice.
        text: English.
        seed: The same one gives the same samples.
        temperature: Of the talker.

    Raises:
        InputError: there is nothing to say, or the seed is out of range.
        EngineError: a model failed.
    """
    clauses = _clauses(text)
    if not clauses:
        raise InputError(f"{text!r}: found nothing to say, expected some words")
    model = package.token2wav()
    flow, hift = _Clocked(model.flow), _Clocked(model.vocoder)
    talker = package.talker()
    parts, tokens, cut, talker_s = [], 0, 0, 0.0
    try:
        with Utterance(cast(Any, flow), cast(Any, hift), package.voice(), seed) as utterance:
            for place, clause in enumerate(clauses):
                request = Request(
                    parts=(TextPart(clause),),
                    max_tokens=PIECES * package.manifest.talker.max_positions,
                    temperature=temperature,
                    seed=(seed + place) % 2**64,
                )
                start = time.perf_counter()
                codes, ended = await _codes(talker, request)
                talker_s += time.perf_counter() - start
                tokens, cut = tokens + len(codes), cut + (not ended)
                parts.append(utterance.push(np.array(codes, np.int32)))
            parts.append(utterance.finish())
    finally:
        await talker.close()
    seconds = {"talker": talker_s, "flow": flow.seconds, "hift": hift.seconds}
    rate_hz = model.config.hift.sample_rate_hz
    return Spoken(np.concatenate(parts), rate_hz, tokens, cut, seconds)


def _clauses(text: str) -> list[str]:
    """A text as the talker is to say it, without thoughts and with such particles as it knows."""
    scanner, splitter = Scanner(), ClauseSplitter("en")
    composer = Composer(talker_renderer(DUOLOGUE_TALKER.family), Speaker("en").say)
    events = [*scanner.feed(text), *scanner.flush()]
    said = composer.compose(event for event in events if isinstance(event, Text | Particle))
    clauses = [*splitter.feed(" ".join(part.text for part in said)), *splitter.flush()]
    return [clause.text for clause in clauses if is_sayable(clause.text)]


async def _codes(talker: TalkerEngine, request: Request) -> tuple[list[int], bool]:
    """The codes of a clause, and whether its speech ended by itself."""
    ids: list[int] = []
    async with aclosing(cast(Any, talker.stream(request))) as steps:
        async for step in steps:
            ids += step.ids if isinstance(step, Ids) else ()
    return [token - FIRST_CODE for token in ids if token != END], ids[-1] == END


class _Clocked:
    """A stage of token2wav that adds up the time of its steps."""

    def __init__(self, stage: Any):
        self._stage = stage
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def step(self, work: Sequence[Any]) -> list[Any]:
        """See `FlowStep.step` and `VocoderStep.step`."""
        start = time.perf_counter()
        try:
            return self._stage.step(work)
        finally:
            self.seconds += time.perf_counter() - start
