"""One utterance: tokens as they come from the language model, to samples as they are ready.

What a listener hears does not depend on how the tokens were handed over, only on the tokens, the
voice, the seed and the schedule; `UtteranceLog` holds these, and `replay` speaks them again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from duologue.errors import ConfigError, InputError, UsageError
from duologue.token2wav.checks import check_samples, check_tokens
from duologue.token2wav.step import FlowStep, FlowWork, VocoderStep, VocoderWork, VoicePrompt


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many tokens each chunk speaks: small ones first, to be heard early.

    Attributes:
        sizes: Tokens of the first chunks; the last size goes on.
    """

    sizes: tuple[int, ...] = (12, 15, 25)

    def __post_init__(self):
        sizes = self.sizes if isinstance(self.sizes, Sequence) else ()
        if not sizes or not all(isinstance(size, Integral) and size >= 1 for size in sizes):
            raise ConfigError(
                f"chunk sizes: found {self.sizes}, expected one or more of 1 token up"
            )

    def size(self, index: int) -> int:
        """Tokens that chunk `index` speaks, unless it is the final one."""
        return self.sizes[min(index, len(self.sizes) - 1)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the flow takes at once, int32 [n]; unless `final`, with its look-ahead."""

    tokens: np.ndarray
    final: bool


class Chunker:
    """Cuts an utterance into chunks; where does not depend on how its tokens are pushed.

    Args:
        schedule: Sizes of the chunks.
        look_ahead: Tokens that a chunk needs beyond those it speaks.
        codebook: How many codes there are.
    """

    def __init__(self, schedule: Schedule, look_ahead: int, codebook: int):
        self._schedule = schedule
        self._look_ahead = look_ahead
        self._codebook = codebook
        self._pending = np.zeros(0, np.int32)
        self._cut = 0

    def push(self, tokens: np.ndarray) -> list[Chunk]:
        """Add tokens; the chunks that they complete, often none.

        Raises:
            InputError: a token is outside the codebook; none of them is taken.
        """
        self._pending = np.concatenate([self._pending, check_tokens(tokens, self._codebook)])
        return list(self._complete())

    def finish(self) -> Chunk:
        """The final chunk: what is left, which may be no token at all."""
        left, self._pending = self._pending, np.zeros(0, np.int32)
        return Chunk(left, final=True)

    def _complete(self) -> Iterator[Chunk]:
        while len(self._pending) >= (size := self._schedule.size(self._cut)) + self._look_ahead:
            yield Chunk(self._pending[: size + self._look_ahead], final=False)
            self._pending = self._pending[size:]
            self._cut += 1


@dataclass(slots=True)
class UtteranceLog:
    """Enough to speak an utterance again: see `replay`.

    Attributes:
        voice_digest: The voice.
        seed: Of the noise.
        schedule: Sizes of the chunks.
        tokens: Every token pushed so far.
        finished: Whether the utterance was spoken to its end.
    """

    voice_digest: str
    seed: int
    schedule: Schedule
    tokens: list[int]
    finished: bool = False


class Utterance:
    """Speaks one utterance: a session of the flow and one of the vocoder.

    Leaving the `with` block frees both, whatever happened inside.

    Args:
        flow: Engine of the flow.
        vocoder: Engine of the vocoder.
        voice: Who speaks.
        seed: Of the noise; the same seed gives the same samples.
        schedule: Sizes of the chunks.

    Raises:
        CapacityError: every slot is taken.
        InputError: the voice does not fit the model.
    """

    def __init__(
        self,
        flow: FlowStep,
        vocoder: VocoderStep,
        voice: VoicePrompt,
        seed: int,
        schedule: Schedule | None = None,
    ):
        schedule = schedule or Schedule()
        config = flow.config
        self.log = UtteranceLog(voice.digest, seed, schedule, [])
        self._chunker = Chunker(schedule, config.look_ahead, config.flow.vocab_size)
        self._flow, self._vocoder = flow, vocoder
        self._open = True
        self._flow_handle = flow.open(voice, seed)
        try:
            self._vocoder_handle = vocoder.open(seed)
        except BaseException:
            flow.close(self._flow_handle)
            raise

    def __enter__(self) -> "Utterance":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def push(self, tokens: np.ndarray) -> np.ndarray:
        """Add speech tokens, whole numbers [n]; the samples that are ready, float32 [m].

        Raises:
            InputError: a token is outside the codebook; none of them is taken.
            UsageError: the utterance is over.
        """
        self._expect_open()
        chunks = self._chunker.push(tokens)
        self.log.tokens.extend(np.asarray(tokens).tolist())
        return self._speak(chunks)

    def finish(self) -> np.ndarray:
        """Speak the rest, float32 [m], and free both sessions.

        Raises:
            UsageError: the utterance is over.
        """
        self._expect_open()
        samples = self._speak([self._chunker.finish()])
        self.log.finished = True
        self.cancel()
        return samples

    def cancel(self) -> None:
        """Stop here and free both sessions; more than once is no error."""
        self._open = False
        self._flow.close(self._flow_handle)
        self._vocoder.close(self._vocoder_handle)

    def _speak(self, chunks: list[Chunk]) -> np.ndarray:
        samples = [np.zeros(0, np.float32)]
        try:
            for chunk in chunks:
                [mel] = self._flow.step([FlowWork(self._flow_handle, chunk.tokens, chunk.final)])
                work = VocoderWork(self._vocoder_handle, mel, chunk.final)
                samples += map(check_samples, self._vocoder.step([work]))
        except BaseException:
            # What follows a lost chunk would not be the utterance any more.
            self.cancel()
            raise
        return np.concatenate(samples)

    def _expect_open(self) -> None:
        if not self._open:
            raise UsageError("this utterance is over; open another one")


def replay(
    log: UtteranceLog, flow: FlowStep, vocoder: VocoderStep, voice: VoicePrompt
) -> np.ndarray:
    """Speak a logged utterance again, float32 [n]; one cut short ends where it did.

    Raises:
        InputError: the voice is not the one of the log.
    """
    if voice.digest != log.voice_digest:
        raise InputError(
            f"voice: found {voice.digest}, expected {log.voice_digest}; load the voice of the log"
        )
    with Utterance(flow, vocoder, voice, log.seed, log.schedule) as utterance:
        samples = utterance.push(np.array(log.tokens, np.int32))
        return np.concatenate([samples, utterance.finish()]) if log.finished else samples
