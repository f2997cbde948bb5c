"""What the server can say: its engines and voices, the same for gRPC and HTTP."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import numpy as np
import soxr

from duologue import metrics
from duologue.config import ServeConfig
from duologue.errors import CapacityError, InputError, UsageError
from duologue.limits import Places
from duologue.serving.errors import EngineGone, NotLoaded, Stopping, TooLarge
from duologue.serving.talker import Talker
from duologue.serving.text_speech import piper_speech, speakable_clauses
from duologue.serving.token_speech import token_speech
from duologue.serving.voices import Voices
from duologue.token2wav.batch import Batcher
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.stream import Schedule
from duologue.tts.piper import PiperVoice

MIN_RATE_HZ, MAX_RATE_HZ = 8_000, 48_000
MAX_CHUNK = 250
"""Tokens of the longest chunk of a schedule, 10 s."""
LANGUAGES = ("en", "zh")

Part = str | np.ndarray
"""A piece of text, or speech tokens int [n]."""


@dataclass(frozen=True, slots=True)
class Engines:
    """What is loaded.

    Attributes:
        lang: Language of texts that name none.
        piper: The decoupled voice.
        piper_name: The name of its model, under which it is asked for.
        batcher: token2wav.
        talker: Turns text to token2wav's tokens.
        default_voice: A stored voice for calls that name none.
    """

    lang: str = "en"
    piper: PiperVoice | None = None
    piper_name: str = ""
    batcher: Batcher | None = None
    talker: Talker | None = None
    default_voice: str = ""

    @property
    def loaded(self) -> str:
        """What is loaded, in words."""
        parts = []
        if self.piper:
            parts.append(f"the voice {self.piper_name!r} (text)")
        if self.batcher:
            takes = "text and speech tokens" if self.talker else "speech tokens"
            parts.append(f"token2wav ({takes}, in stored voices)")
        return " and ".join(parts) or "no engine"

    async def close(self) -> None:
        """Release them."""
        if self.piper:
            self.piper.close()
        if self.batcher:
            await asyncio.to_thread(self.batcher.close)
        if self.talker:
            await self.talker.engine.close()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a call wants to be spoken; empty and None are the server's choice.

    Raises:
        InputError: a rate, a schedule or a language that is not possible.
    """

    voice: str = ""
    seed: int | None = None
    rate_hz: int = 0
    schedule: tuple[int, ...] = ()
    lang: str = ""

    def __post_init__(self):
        if self.rate_hz and not MIN_RATE_HZ <= self.rate_hz <= MAX_RATE_HZ:
            raise InputError(
                f"rate_hz: found {self.rate_hz}, expected {MIN_RATE_HZ} to {MAX_RATE_HZ}, or 0"
            )
        if not all(1 <= size <= MAX_CHUNK for size in self.schedule):
            raise InputError(
                f"schedule: found {list(self.schedule)}, expected 1 to {MAX_CHUNK} tokens each"
            )
        if self.lang and self.lang not in LANGUAGES:
            raise InputError(f"lang: found {self.lang!r}, expected {' or '.join(LANGUAGES)}")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance in the making; closing `samples` stops the work.

    Attributes:
        engine: "piper" or "token2wav".
        voice: Its name.
        rate_hz: Samples a second.
        samples: float32 [n] at a time.
        seed: Of the noise; None for piper.
        voice_digest: Of the stored voice; empty for piper.
        schedule: Of the chunks; () for piper.
    """

    engine: str
    voice: str
    rate_hz: int
    samples: AsyncGenerator[np.ndarray, None]
    seed: int | None = None
    voice_digest: str = ""
    schedule: tuple[int, ...] = ()


class Speaker:
    """The engines behind a limit of calls.

    Args:
        engines: What is loaded.
        voices: The voices, and the models that listen to clips.
        limits: The server's set-up.
    """

    def __init__(self, engines: Engines, voices: Voices, limits: ServeConfig):
        self.engines, self.voices, self.limits = engines, voices, limits
        self._places = Places(limits.sessions)
        self._gone = False

    @property
    def active(self) -> int:
        """Places that are taken."""
        return self._places.taken

    @property
    def full(self) -> str:
        """Why no call is taken now; empty if one is."""
        if self._gone:
            return "an engine has ended; restart the server"
        if self._places.closing:
            return "the server is stopping; try another one"
        if self.active >= self._places.capacity:
            return f"all {self._places.capacity} places are taken; try again later"
        return ""

    @contextmanager
    def call(self, kind: str) -> Iterator[metrics.Session]:
        """Hold a place for an utterance, and count it.

        Args:
            kind: "grpc" or "http".

        Raises:
            CapacityError: every place is taken.
            Stopping: the server takes no more calls.
        """
        with metrics.session(kind) as session:
            if self.full:
                raise (Stopping if self._places.closing else CapacityError)(self.full)
            with self._places.take():
                try:
                    yield session
                except EngineGone:
                    self._gone = True
                    raise

    async def drain(self, seconds: float) -> None:
        """Take no more calls, and wait so long for the last one to end."""
        await self._places.drain(seconds)

    async def close(self) -> None:
        """Release the engines."""
        self.voices.close()
        await self.engines.close()

    async def speak(self, wanted: Wanted, parts: AsyncGenerator[Part, None]) -> Utterance:
        """Begin to speak parts as they come; the first one says whether these are text or tokens.

        Raises:
            InputError: there is no part, or a voice or token that does not fit.
            UsageError: no such voice, or what is loaded cannot do this.
        """
        first = await anext(parts, None)
        if first is None:
            raise InputError("nothing to say: send some text, or speech tokens")
        kind = str if isinstance(first, str) else np.ndarray
        whole = self._checked(first, parts, kind)
        name = wanted.voice or self._default(kind)
        if self.engines.piper and name == self.engines.piper_name:
            utterance = self._by_piper(self.engines.piper, wanted, whole, kind)
        else:
            utterance = await self._by_token2wav(name, wanted, whole, kind)
        return utterance

    def _default(self, kind: type) -> str:
        engines = self.engines
        if kind is str and engines.piper and not engines.talker:
            return engines.piper_name
        if kind is np.ndarray and engines.batcher is None:
            raise NotLoaded(f"speech tokens need token2wav; {self._has()}")
        return engines.default_voice

    def _has(self) -> str:
        return f"loaded is {self.engines.loaded}"

    def _by_piper(
        self, piper: PiperVoice, wanted: Wanted, parts: AsyncGenerator[Part, None], kind: type
    ) -> Utterance:
        name = self.engines.piper_name
        if kind is not str:
            raise NotLoaded(f"voice {name!r} takes text, not speech tokens; {self._has()}")
        clauses = speakable_clauses(parts, wanted.lang or self.engines.lang)  # type: ignore[arg-type]
        samples = piper_speech(piper, clauses)
        rate_hz = wanted.rate_hz or piper.rate_hz
        heard = _heard("piper", _resampled(samples, piper.rate_hz, rate_hz), rate_hz)
        return Utterance("piper", name, rate_hz, heard)

    async def _by_token2wav(
        self, name: str, wanted: Wanted, parts: AsyncGenerator[Part, None], kind: type
    ) -> Utterance:
        voice = await self.voices.get(name)
        batcher, talker = self.engines.batcher, self.engines.talker
        if batcher is None:
            raise NotLoaded(f"voice {name!r} needs token2wav; {self._has()}")
        tokens = parts
        seed = secrets.randbits(64) if wanted.seed is None else wanted.seed
        if kind is str:
            tokens = self._talk(talker, name, voice, wanted, parts, seed)
        schedule = Schedule(wanted.schedule) if wanted.schedule else Schedule()
        samples = token_speech(
            batcher,
            voice,
            seed,
            schedule,
            tokens,  # type: ignore[arg-type]
            ahead_s=self.limits.ahead_s,
        )
        rate_hz = wanted.rate_hz or batcher.rate_hz
        heard = _heard("token2wav", _resampled(samples, batcher.rate_hz, rate_hz), rate_hz)
        return Utterance("token2wav", name, rate_hz, heard, seed, voice.digest, schedule.sizes)

    def _talk(
        self,
        talker: Talker | None,
        name: str,
        voice: VoicePrompt,
        wanted: Wanted,
        parts: AsyncGenerator[Part, None],
        seed: int,
    ) -> AsyncGenerator[np.ndarray, None]:
        if talker is None:
            raise NotLoaded(
                f"voice {name!r} takes speech tokens; text needs a talker in the set-up; "
                f"{self._has()}"
            )
        lang = wanted.lang or self.engines.lang
        if talker.config.engine == "embedded" and lang != "en":
            raise UsageError(f"voice {name!r} speaks English: found lang {lang!r}, expected 'en'")
        clauses = speakable_clauses(parts, lang)  # type: ignore[arg-type]
        return talker.tokens(clauses, name, voice, seed)

    async def _checked(
        self, first: Part, rest: AsyncGenerator[Part, None], kind: type
    ) -> AsyncGenerator[Part, None]:
        """All parts, of one kind and within the limits."""
        limits = self.limits
        most, unit = (
            (limits.max_chars, "characters") if kind is str else (limits.max_tokens, "tokens")
        )
        count = 0
        async with aclosing(rest):
            async for part in _chained(first, rest):
                if not isinstance(part, kind):
                    raise InputError("found text and tokens in one utterance, expected one kind")
                count += len(part)
                if count > most:
                    raise TooLarge(
                        f"found more than {most} {unit}; end this utterance and begin another"
                    )
                yield part


async def _chained(first: Part, rest: AsyncIterator[Part]) -> AsyncIterator[Part]:
    yield first
    async for part in rest:
        yield part


async def _resampled(
    samples: AsyncGenerator[np.ndarray, None], from_hz: int, to_hz: int
) -> AsyncGenerator[np.ndarray, None]:
    async with aclosing(samples):
        if from_hz == to_hz:
            async for chunk in samples:
                yield chunk
            return
        stream = soxr.ResampleStream(from_hz, to_hz, 1)
        async for chunk in samples:
            yield stream.resample_chunk(chunk)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


async def _heard(
    engine: str, samples: AsyncGenerator[np.ndarray, None], rate_hz: int
) -> AsyncGenerator[np.ndarray, None]:
    """The same samples, counted; silence from first to last is an error."""
    listener, said = metrics.Listener(engine), False
    async with aclosing(samples):
        async for chunk in samples:
            if len(chunk):
                said = True
                listener.hear(len(chunk) / rate_hz)
                yield chunk
    if not said:
        raise InputError("found nothing to say, expected some words or speech tokens")
