"""The seams of token2wav: what a session is, and what an engine does with many of them at once.

An engine owns the state of its sessions in a pool; the caller holds opaque handles. Arrays between
flow and vocoder belong to the engine pair (numpy here, GPU tensors there) and are only passed on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from duologue.errors import CapacityError
from duologue.token2wav.config import Token2wavConfig


@dataclass(frozen=True, slots=True)
class FrontEndId:
    """Names the models that made a voice.

    Attributes:
        name: Where they lay, "Step-Audio-2-mini/token2wav"; for people.
        digest: Hash of their files, in hexadecimal, which alone is compared.
    """

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:12]})"


@dataclass(frozen=True, slots=True)
class VoicePrompt:
    """A voice: a few seconds of somebody's speech in the three forms that the flow needs.

    Attributes:
        tokens: Speech tokens of the clip, int32 [n_tokens].
        mel: Its log-mel at the flow's frame rate, float32 [n_frames, mel_bins]. May differ from
            `frames_per_token * n_tokens` by up to 2 frames (the two front ends round differently).
        embedding: Speaker embedding, float32 [spk_embed_dim], not normalised.
        digest: Hash of the three; equal voices share their caches.
        front_end: The models that made it; None if nobody knows.
    """

    tokens: np.ndarray
    mel: np.ndarray
    embedding: np.ndarray
    digest: str
    front_end: FrontEndId | None = None


@dataclass(frozen=True, slots=True)
class Handle:
    """One session of an engine: a slot and the generation that tells its tenants apart."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class FlowWork:
    """One chunk of one session.

    Attributes:
        handle: The session.
        tokens: int32 [n]; unless `final`, the last `look_ahead` of them are only looked at and
            come again at the start of the next chunk.
        final: Whether the utterance ends with these tokens.
    """

    handle: Handle
    tokens: np.ndarray
    final: bool


@dataclass(frozen=True, slots=True)
class VocoderWork:
    """The mel of one chunk of one session, [frames, mel_bins], in the arrays of the engine."""

    handle: Handle
    mel: Any
    final: bool


class FlowStep(Protocol):
    """Speech tokens to mel, many sessions a step."""

    config: Token2wavConfig

    @property
    def state_bytes(self) -> Mapping[str, int]:
        """Memory held for sessions, see `duologue.state_metrics.Holds`."""
        ...

    def open(self, voice: VoicePrompt, seed: int) -> Handle:
        """Begin an utterance; the caches of the voice are computed once and shared.

        Raises:
            CapacityError: every slot is taken.
            InputError: the voice does not fit the model.
        """
        ...

    def step(self, work: Sequence[FlowWork]) -> list[Any]:
        """Advance each session by one chunk; mel [frames, mel_bins] each, in the order of `work`.

        A chunk speaks `len(tokens) - look_ahead` tokens, or all of them if final.
        """
        ...

    def offline(self, utterances: Sequence[tuple[np.ndarray, VoicePrompt, int]]) -> list[Any]:
        """Mel of whole utterances (tokens, voice, seed), every frame seeing all of its others."""
        ...

    def close(self, handle: Handle) -> None:
        """End a session and free its state at once; a closed or unknown handle is no error."""
        ...


class VocoderStep(Protocol):
    """Mel to samples, many sessions a step; what later mel can still change is held back."""

    @property
    def state_bytes(self) -> Mapping[str, int]:
        """Memory held for sessions, see `duologue.state_metrics.Holds`."""
        ...

    def open(self, seed: int) -> Handle:
        """Begin an utterance."""
        ...

    def step(self, work: Sequence[VocoderWork]) -> list[np.ndarray]:
        """Samples float32 [n] that are settled by now, in the order of `work`; n may be 0.

        Over a whole utterance the sum is `samples_per_frame` for each mel frame.
        """
        ...

    def offline(self, mels: Sequence[Any], seeds: Sequence[int]) -> list[np.ndarray]:
        """Samples of whole utterances."""
        ...

    def close(self, handle: Handle) -> None:
        """End a session and free its state at once; a closed or unknown handle is no error."""
        ...


@dataclass(slots=True)
class Slots:
    """Free and taken slots of a pool; a handle tells its tenant from an earlier one."""

    capacity: int
    generations: dict[int, int] = field(default_factory=dict)
    _free: list[int] = field(init=False)
    _count: int = 0

    def __post_init__(self):
        self._free = list(range(self.capacity))[::-1]

    def take(self) -> Handle:
        """A free slot.

        Raises:
            CapacityError: every slot is taken.
        """
        if not self._free:
            raise CapacityError(
                f"all {self.capacity} sessions are taken; close one, or try again later"
            )
        slot = self._free.pop()
        self._count += 1
        self.generations[slot] = self._count
        return Handle(slot, self._count)

    def holds(self, handle: Handle) -> bool:
        """Whether the handle is the slot's present tenant."""
        return self.generations.get(handle.slot) == handle.generation

    def release(self, handle: Handle) -> bool:
        """Free the slot; False if the handle is not its tenant any more."""
        if not self.holds(handle):
            return False
        del self.generations[handle.slot]
        self._free.append(handle.slot)
        return True
