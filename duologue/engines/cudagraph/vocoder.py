"""The vocoder on one NVIDIA GPU: a step of f0, source and HiFT in one CUDA graph.

It computes what `duologue.token2wav.vocoder` computes in its exact mode: each step runs HiFT over
the new frames and as many before them as its receptive field takes, and holds back those whose
right side is still missing.
"""

# A kernel is launched by an index, which its decorator gives it where triton is installed.
# pyright: reportIndexIssue=false

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from duologue.engines.cudagraph import vocoder_kernels as kernels
from duologue.engines.cudagraph.capture import Captured, Lanes, Upload, find_device
from duologue.engines.cudagraph.flow import STREAM_FRAMES, power_of_two, program_frames
from duologue.engines.cudagraph.hift import Hift
from duologue.engines.cudagraph.vocoder_weights import HiftWeights
from duologue.engines.cudagraph.weights import Packer
from duologue.token2wav import noise
from duologue.token2wav.checks import check_mel_shape, check_once
from duologue.token2wav.hift import HiFT
from duologue.token2wav.receptive_field import receptive_field
from duologue.token2wav.step import Handle, Slots, VocoderWork

OFFLINE_FRAMES = 8192
"""Frames of whole utterances in one graph."""
PARALLEL_BATCH = 4
"""Sessions up to which the blocks of a stage run side by side; more fill the device anyway."""


@dataclass(slots=True)
class Session:
    """One utterance on its way.

    Attributes:
        seed: Of its noise.
        known: Frames of mel so far.
        emitted: Frames whose samples were given out.
    """

    seed: int
    known: int = 0
    emitted: int = 0


class Program:
    """One graph for so many sessions and so many new frames.

    Attributes:
        meta: What the kernels are told of each row.
        mel: New mel, float32 [sessions, frames, mel_bins].
        samples: What comes out, on the host.
    """

    def __init__(
        self, vocoder: "CudaGraphVocoder", weights: HiftWeights, kept: Tensor, phase: Tensor,
        sessions: int, frames: int, device: torch.device, pool,
    ):  # fmt: skip
        config = weights.config
        out = frames + vocoder.hold_back
        look = vocoder.context + vocoder.field.f0
        self.meta = Upload((sessions, kernels.COLUMNS), torch.int32, device)
        self.clear()
        self.meta.send()
        self.mel = torch.zeros(sessions, frames, config.mel_bins, device=device)
        shape = (sessions, out * config.samples_per_frame)
        self.samples = torch.zeros(shape, pin_memory=device.type == "cuda")
        lanes = Lanes(device, 4 if device.type == "cuda" and sessions <= PARALLEL_BATCH else 0)
        network = Hift(weights, self.meta.device, out + vocoder.context, lanes)
        window = self.mel.new_empty(sessions, out + look, config.mel_bins)
        sizes = {
            "SIZE": kept.shape[1], "N": config.mel_bins, "COLS": kernels.COLUMNS,
            "BN": power_of_two(config.mel_bins), "num_warps": 1,
        }  # fmt: skip

        def solve() -> Tensor:
            meta = self.meta.device
            kernels.window_kernel[(out + look, sessions)](
                kept, self.mel, window, meta, frames, out + look, **sizes
            )
            kernels.keep_kernel[(kept.shape[1], sessions)](window, kept, meta, out + look, **sizes)
            return network(window, phase, out)

        self._solve = Captured(solve, device, pool)

    def clear(self) -> None:
        """Unset every row; waits until the last run has read them."""
        self.meta.wait()
        self.meta.host.zero_()
        self.meta.host[:, kernels.SLOT.value] = -1

    def run(self) -> None:
        """Start it; `samples` is there when the device has come so far."""
        self.meta.send()
        self.samples.copy_(self._solve(), non_blocking=True)


class CudaGraphVocoder:
    """HiFT as kernels and CUDA graphs; a `VocoderStep` for mel on the device or the host.

    Any thread may call any method; they take turns.

    Args:
        hift: The weights, in float32.
        sessions: Sessions at once.
        max_batch: Sessions in one graph; larger steps run it more than once.
        dtype: Of weights and activations; f0 and phase are float32 and float64 always.
        device: "cuda" or "cuda:1"; "cpu" is for tests under Triton's interpreter.

    Raises:
        EngineError: there is no such device.
    """

    def __init__(
        self,
        hift: HiFT,
        *,
        sessions: int,
        max_batch: int = 64,
        dtype: torch.dtype = torch.float16,
        device: str = "cuda",
    ):
        self._device, self._max_batch = find_device(device), max_batch
        self._config = hift.config
        self._weights = HiftWeights(hift, Packer(self._device, dtype))
        self.field = receptive_field(hift.config)
        self.context = max(self.field.mel, self.field.source)
        """Frames that HiFT looks at before those it gives out."""
        self.hold_back = self.field.mel + self.field.f0
        """Frames of delay: known, but not given out yet."""
        look = self.hold_back + self.context + self.field.f0
        self._kept = torch.zeros(sessions, look, hift.config.mel_bins, device=self._device)
        self._phase = torch.zeros(sessions, dtype=torch.float64, device=self._device)
        self._slots = Slots(sessions)
        self._sessions: dict[Handle, Session] = {}
        self._programs: dict[tuple[int, int], Program] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        self._lock = threading.RLock()

    @property
    def state_bytes(self) -> dict[str, int]:
        """Memory on the device; all of it is taken when the engine is made."""
        # Without the lock, which a step holds: a length is never half written.
        slot = (self._kept.nbytes + self._phase.nbytes) // self._slots.capacity
        held = slot * len(self._sessions)
        return {"sessions": held, "set aside": slot * self._slots.capacity - held}

    def warm(self, batches: Iterable[int] = (1,), frames: Iterable[int] = STREAM_FRAMES) -> None:
        """Make graphs ahead of their first use.

        Args:
            batches: Sessions a step.
            frames: Frames of a chunk.
        """
        with self._lock, torch.inference_mode():
            for length in frames:
                for sessions in batches:
                    self._program(power_of_two(sessions), program_frames(length))

    def open(self, seed: int) -> Handle:
        """Begin an utterance.

        Raises:
            CapacityError: every slot is taken.
            InputError: the seed is out of range.
        """
        noise.key(seed)
        with self._lock:
            handle = self._slots.take()
            self._sessions[handle] = Session(seed)
        return handle

    def close(self, handle: Handle) -> None:
        """End a session and free its state at once; a closed or unknown handle is no error."""
        with self._lock:
            self._sessions.pop(handle, None)
            self._slots.release(handle)

    def step(self, work: Sequence[VocoderWork]) -> list[np.ndarray]:
        """Advance each session by the mel of one chunk; the one place that waits for the device.

        Returns:
            Samples float32 [n] that are settled by now, in the order of `work`; n may be 0, and is
            for a closed session.

        Raises:
            InputError: mel of another shape, or a session has two chunks.
        """
        check_once(work)
        mels = [self._mel(item.mel) for item in work]
        samples = [np.zeros(0, np.float32)] * len(work)
        with self._lock, torch.inference_mode():
            groups: dict[int, list[int]] = defaultdict(list)
            for place, item in enumerate(work):
                if item.handle in self._sessions:
                    groups[program_frames(max(len(mels[place]), 1))].append(place)
            for length, places in groups.items():
                for begin in range(0, len(places), self._max_batch):
                    group = places[begin : begin + self._max_batch]
                    rows = [
                        (
                            work[p].handle.slot,
                            self._sessions[work[p].handle],
                            mels[p],
                            work[p].final,
                        )
                        for p in group
                    ]
                    made = self._advance(rows, length)
                    for place, ready in zip(group, made, strict=True):
                        samples[place] = ready
        return samples

    def offline(
        self, mels: Sequence[Tensor | np.ndarray], seeds: Sequence[int]
    ) -> list[np.ndarray]:
        """Whole utterances, mel [frames, mel_bins] to float32 [samples_per_frame * frames] each.

        Raises:
            InputError: mel of another shape, or a seed out of range.
        """
        rows = [
            (-1, Session(seed), self._mel(mel), True) for mel, seed in zip(mels, seeds, strict=True)
        ]
        for seed in seeds:
            noise.key(seed)
        samples = [np.zeros(0, np.float32)] * len(mels)
        groups: dict[int, list[int]] = defaultdict(list)
        for place, mel in enumerate(mels):
            if len(mel):
                groups[program_frames(len(mel))].append(place)
        with self._lock, torch.inference_mode():
            for length, group in groups.items():
                size = max(1, min(self._max_batch, OFFLINE_FRAMES // length))
                for begin in range(0, len(group), size):
                    part = group[begin : begin + size]
                    made = self._advance([rows[place] for place in part], length)
                    for place, ready in zip(part, made, strict=True):
                        samples[place] = ready
        return samples

    def _mel(self, mel: Tensor | np.ndarray) -> Tensor:
        mel = torch.as_tensor(mel, dtype=torch.float32)
        check_mel_shape(mel.shape, self._config.mel_bins)
        return mel.to(self._device)

    def _advance(
        self, rows: Sequence[tuple[int, Session, Tensor, bool]], length: int
    ) -> list[np.ndarray]:
        """Samples for each slot, session, new mel, and whether it is the last."""
        program = self._program(power_of_two(len(rows)), length)
        program.clear()
        counts = []
        for row, (slot, session, mel, final) in enumerate(rows):
            line, count = self._line(slot, session, len(mel), final)
            program.meta.host[row] = torch.from_numpy(line)
            counts.append(count * self._config.samples_per_frame)
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            [program.mel[row, : len(mel)] for row, (_, _, mel, _) in enumerate(rows)],
            [mel for _, _, mel, _ in rows],
        )
        program.run()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        samples = program.samples.numpy()
        return [samples[row, :count].copy() for row, count in enumerate(counts)]

    def _line(self, slot: int, session: Session, new: int, final: bool) -> tuple[np.ndarray, int]:
        """Bring a session forward: its row of meta, and how many frames it gives out."""
        field = self.field
        first, start = self._bounds(session.emitted)
        kept, known = session.known - first, session.known + new
        end = known if final else known - field.f0
        settled = known if final else max(session.emitted, known - self.hold_back)
        next_first, next_start = self._bounds(settled)
        skip, count = session.emitted - start, settled - session.emitted
        session.known, session.emitted = known, settled
        line = (
            slot, kept, new, start - first, max(0, end - start), start, skip,
            next_first - first, next_start - start, *noise.key(session.seed),
        )  # fmt: skip
        return np.array(line, np.int64).astype(np.int32), count

    def _bounds(self, emitted: int) -> tuple[int, int]:
        """Where f0 and where HiFT begin to look, to go on behind `emitted` frames."""
        start = max(0, emitted - self.context)
        return max(0, start - self.field.f0), start

    def _program(self, sessions: int, frames: int) -> Program:
        """The graph of a step, made now if it is new."""
        if (sessions, frames) not in self._programs:
            self._programs[sessions, frames] = Program(
                self, self._weights, self._kept, self._phase, sessions, frames, self._device,
                self._pool,
            )  # fmt: skip
        return self._programs[sessions, frames]
