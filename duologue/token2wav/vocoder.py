"""Mel to samples for many sessions at once, in pieces, over the two graphs of HiFT.

HiFT looks both ways and keeps no state, so each step runs it again over a window: the new frames,
and on either side as many as its receptive field takes. The mode says what becomes of frames whose
right side is still missing:

exact: they are held back until it is there. Streamed samples equal those of the whole utterance.
early: fewer are held back, and what is given out was made without some of its right side. The next
step makes the held-back frames better, and goes over to them in a cross-fade of one frame.

In both the phase of the source runs on, and noise goes by frame, so nothing depends on how the mel
was cut into pieces.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from duologue.engines.graph import Graph
from duologue.errors import ConfigError, InputError
from duologue.token2wav import noise
from duologue.token2wav.checks import check_mel, check_once
from duologue.token2wav.config import HiftConfig
from duologue.token2wav.receptive_field import receptive_field
from duologue.token2wav.source import Source, SourceWeights
from duologue.token2wav.step import Handle, Slots, VocoderWork

Mode = Literal["exact", "early"]


@dataclass(frozen=True, slots=True)
class VocoderState:
    """One session between two steps; never written to, only replaced.

    Attributes:
        seed: Of the utterance.
        emitted: Frames whose samples were given out.
        mel: The newest frames, [n, mel_bins], as far back as the next step looks.
        phase: Of the source's frame before the next window; None while that starts at frame 0.
        tail: Early mode: samples made already of the first frame behind `emitted`.
    """

    seed: int
    emitted: int
    mel: np.ndarray
    phase: float | None
    tail: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.mel.nbytes + self.tail.nbytes


@dataclass(frozen=True, slots=True)
class _Window:
    """What one step runs for one session.

    Attributes:
        state: Of the session before the step.
        mel: Known mel from frame `first` on.
        first: Where f0 begins to look.
        start: First frame to make samples of.
        end: Behind the last frame to make samples of.
        settled: Behind the last frame to give out.
    """

    state: VocoderState
    mel: np.ndarray
    first: int
    start: int
    end: int
    settled: int

    @property
    def layout(self) -> tuple[int, int, int]:
        """Windows of one layout fit in one batch."""
        return len(self.mel), self.start - self.first, self.end - self.first


class Vocoder:
    """The `VocoderStep` of any engine that runs the graphs `f0` and `hift`, on numpy arrays.

    Any thread may call any method. Steps take turns; whole utterances are made beside them.

    Args:
        config: Of the model in the graphs.
        f0: mel -> f0_hz.
        hift: mel, source -> wav.
        weights: Of the same checkpoint.
        capacity: Most sessions at a time.
        mode: "exact", or "early" for less delay.
        early_frames: Frames that early mode holds back.

    Raises:
        ConfigError: early mode would hold back nothing.
    """

    def __init__(
        self,
        config: HiftConfig,
        f0: Graph,
        hift: Graph,
        weights: SourceWeights,
        *,
        capacity: int,
        mode: Mode = "exact",
        early_frames: int = 8,
    ):
        if early_frames < 1:
            raise ConfigError(f"early_frames: found {early_frames}, expected at least 1")
        self._config, self._f0, self._hift = config, f0, hift
        self._source = Source(config, weights)
        self._field = receptive_field(config)
        self._early = mode == "early"
        self.hold_back = (
            early_frames
            if self._early
            # The last half frame of source that HiFT can reach weighs too little to wait for.
            else self._field.mel + self._field.f0
        )
        """Frames of delay: known, but not given out yet."""
        # One frame long: behind it the older samples, which saw less, are the worse ones.
        rise = (np.arange(config.samples_per_frame) + 0.5) / config.samples_per_frame
        self._fade_in = np.sin(np.pi / 2 * rise) ** 2
        self._slots = Slots(capacity)
        self._states: dict[Handle, VocoderState] = {}
        self._running = threading.Lock()
        self._table = threading.Lock()

    @property
    def state_bytes(self) -> dict[str, int]:
        """Memory of the open sessions."""
        with self._table:
            return {"sessions": sum(state.nbytes for state in self._states.values())}

    def open(self, seed: int) -> Handle:
        """Begin an utterance.

        Raises:
            CapacityError: every slot is taken.
            InputError: the seed is out of range.
        """
        state = self._new_state(seed)
        with self._table:
            handle = self._slots.take()
            self._states[handle] = state
        return handle

    def step(self, work: Sequence[VocoderWork]) -> list[np.ndarray]:
        """Advance each session by the mel of one chunk; windows of equal length share each run.

        No session is advanced if an error is raised.

        Returns:
            Samples float32 [n] that are settled by now, in the order of `work`; n may be 0, and is
            for a session that is closed before the end of the step.

        Raises:
            InputError: mel of another shape, or a session has two chunks.
            EngineError: a graph failed.
        """
        check_once(work)
        samples = [_NO_SAMPLES] * len(work)
        with self._running:
            windows = {
                place: self._window(state, item.mel, final=item.final)
                for place, item in enumerate(work)
                if (state := self._states.get(item.handle))
            }
            made = self._run(windows)
            for place, window in windows.items():
                if place in made:
                    state, ready = self._settle(window, *made[place])
                else:
                    state, ready = replace(window.state, mel=window.mel), _NO_SAMPLES
                handle = work[place].handle
                with self._table:
                    if handle in self._states:
                        self._states[handle] = state
                        samples[place] = ready
        return samples

    def close(self, handle: Handle) -> None:
        """End a session and free its state at once; a closed or unknown handle is no error.

        During a step the step gives no samples for it.
        """
        with self._table:
            self._states.pop(handle, None)
            self._slots.release(handle)

    def snapshot(self, handle: Handle) -> VocoderState:
        """The whole state of a session.

        Raises:
            InputError: the session is closed.
        """
        with self._running:
            if handle not in self._states:
                raise InputError(f"{handle} is closed; take the snapshot of an open session")
            return self._states[handle]

    def restore(self, handle: Handle, state: VocoderState) -> None:
        """Go on from a snapshot, in any open session.

        Raises:
            InputError: the session is closed.
        """
        with self._running, self._table:
            if handle not in self._states:
                raise InputError(f"{handle} is closed; open a session to restore into")
            self._states[handle] = state

    def one_shot(self, mel: np.ndarray, seed: int) -> np.ndarray:
        """A whole utterance, [T, mel_bins] to float32 [samples_per_frame * T]; needs no session."""
        return self.offline([mel], [seed])[0]

    def offline(self, mels: Sequence[np.ndarray], seeds: Sequence[int]) -> list[np.ndarray]:
        """Whole utterances; those of equal length run together, and none is padded.

        Raises:
            InputError: mel of another shape, or a seed out of range.
            EngineError: a graph failed.
        """
        windows = {
            place: self._window(self._new_state(seed), mel, final=True)
            for place, (mel, seed) in enumerate(zip(mels, seeds, strict=True))
        }
        made = self._run(windows)
        return [made[place][1] if place in made else _NO_SAMPLES for place in windows]

    def _new_state(self, seed: int) -> VocoderState:
        noise.key(seed)
        mel = np.zeros((0, self._config.mel_bins), np.float32)
        return VocoderState(seed, 0, mel, None, _NO_SAMPLES)

    def _bounds(self, emitted: int) -> tuple[int, int]:
        """Where f0 and where HiFT begin to look, to go on behind `emitted` frames."""
        start = max(0, emitted - max(self._field.mel, self._field.source))
        return max(0, start - self._field.f0), start

    def _window(self, state: VocoderState, mel: np.ndarray, *, final: bool) -> _Window:
        mel = np.concatenate([state.mel, check_mel(mel, self._config.mel_bins)])
        first, start = self._bounds(state.emitted)
        frames = first + len(mel)
        settled = frames if final else max(state.emitted, frames - self.hold_back)
        # Exact mode has no use for the frames whose f0 is not settled.
        end = frames if final or self._early else frames - self._field.f0
        return _Window(state, mel, first, start, end, settled)

    def _run(self, windows: Mapping[int, _Window]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """f0_hz [frames] and samples, from `start` to `end`, of each window that settles any."""
        groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for place, window in windows.items():
            if window.settled > window.state.emitted:
                groups[window.layout].append(place)
        made = {}
        for places in groups.values():
            batch = self._run_batch([windows[place] for place in places])
            made.update(zip(places, batch, strict=True))
        return made

    def _run_batch(self, windows: Sequence[_Window]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The same for windows of one layout; all of them start at frame 0, or none does."""
        _, low, high = windows[0].layout
        mel = np.stack([window.mel for window in windows])
        f0_hz = self._f0.run({"mel": mel})["f0_hz"][:, low:high]
        normals = [
            noise.normal(
                window.state.seed,
                noise.SOURCE,
                window.start,
                high - low,
                self._config.samples_per_frame,
            )
            for window in windows
        ]
        phases = [window.state.phase for window in windows]
        known = None if windows[0].start == 0 else np.array(phases, np.float64)
        source = self._source.excite(f0_hz, np.stack(normals), known)
        wav = self._hift.run({"mel": mel[:, low:high], "source": source})["wav"]
        return list(zip(f0_hz, wav, strict=True))

    def _settle(
        self, window: _Window, f0_hz: np.ndarray, wav: np.ndarray
    ) -> tuple[VocoderState, np.ndarray]:
        """The state behind a step, and the samples that it gives out."""
        state, samples = window.state, self._config.samples_per_frame
        fresh = wav[(state.emitted - window.start) * samples :].copy()
        overlap = len(state.tail)
        if overlap:
            fresh[:overlap] = state.tail + self._fade_in * (fresh[:overlap] - state.tail)
        ready = (window.settled - state.emitted) * samples
        first, start = self._bounds(window.settled)
        return VocoderState(
            seed=state.seed,
            emitted=window.settled,
            mel=window.mel[first - window.first :].copy(),
            phase=self._source.advance(state.phase, f0_hz[: start - window.start]),
            tail=fresh[ready : ready + samples].copy() if self._early else _NO_SAMPLES,
        ), fresh[:ready]


_NO_SAMPLES = np.zeros(0, np.float32)
