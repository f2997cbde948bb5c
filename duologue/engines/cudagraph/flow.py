"""The flow on one NVIDIA GPU: encoder and all Euler steps of a chunk in one CUDA graph.

The state of the sessions never leaves the device, and a step does not wait for it. A graph is made
for each size of batch and chunk; rows without a session have no slot and no frames.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from duologue.engines.cudagraph import kernels
from duologue.engines.cudagraph.capture import find_device
from duologue.engines.cudagraph.encoder import Encoder
from duologue.engines.cudagraph.estimator import Estimator
from duologue.engines.cudagraph.programs import Line, Program
from duologue.engines.cudagraph.state import Caches, Memory
from duologue.engines.cudagraph.voices import VoiceSlots
from duologue.engines.cudagraph.weights import Packer, pack_encoder, pack_estimator
from duologue.errors import ConfigError
from duologue.token2wav import noise
from duologue.token2wav.checks import (
    check_chunks,
    check_tokens,
    check_voice,
    check_whole_tokens,
)
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.flow import Flow
from duologue.token2wav.solver import unit_norm
from duologue.token2wav.step import FlowWork, Handle, Slots, VoicePrompt

STREAM_FRAMES = (24, 30, 50, 54)
"""Lengths of chunks that get graphs of their own; 54 holds any final chunk of 25-token chunks."""
COARSE = 64
"""Longer ones are rounded up to a multiple of it."""


@dataclass(slots=True)
class Session:
    """One utterance on its way.

    Attributes:
        seed: Of its noise.
        digest: Of its voice.
        voice: Slot of its voice.
        prompt: Mel frames of the prompt.
        frames: Mel frames so far.
        side: Side of the convolution caches that the next chunk reads.
    """

    seed: int
    digest: str
    voice: int
    prompt: int
    frames: int = 0
    side: int = 1


class CudaGraphFlow:
    """The flow as kernels and CUDA graphs; a `FlowStep` whose mel are tensors on the device.

    It computes what `GraphFlow` computes, in half precision: the same window, positions and noise.
    Any thread may call any method; they take turns.

    Args:
        flow: The weights, in float32.
        config: Sizes of the model.
        sessions: Sessions at once.
        window: Mel frames of its own past that a session attends to.
        voices: Voices in memory; sessions can use as many at once.
        max_prompt: Mel frames of the longest prompt.
        max_batch: Sessions in one graph; larger steps run it more than once.
        dtype: Of weights, activations and caches.
        device: "cuda" or "cuda:1"; "cpu" is for tests under Triton's interpreter.

    Raises:
        ConfigError: a size that does not hold whole tokens, or a model that reopens prompts.
        EngineError: there is no such device.
    """

    def __init__(
        self,
        flow: Flow,
        config: Token2wavConfig,
        *,
        sessions: int,
        window: int = 100,
        voices: int = 8,
        max_prompt: int = 500,
        max_batch: int = 64,
        dtype: torch.dtype = torch.float16,
        device: str = "cuda",
    ):
        check_whole_tokens(config, window=window, max_prompt=max_prompt)
        if config.reopens_prompt:
            raise ConfigError("the engine cudagraph cannot reopen a prompt; take onnx or torch")
        self.config, self._device, self._dtype = config, find_device(device), dtype
        self._max_batch, self._max_prompt = max_batch, max_prompt
        pack = Packer(self._device, dtype)
        encoder = pack_encoder(flow, pack)
        self._to_condition = encoder.mel
        self._encoder = Encoder(encoder, config.look_ahead, config.frames_per_token)
        self._estimator = Estimator(pack_estimator(flow, config.flow.decoder, pack))
        self._speaker_weight = pack.full(flow.spk_embed_affine_layer.weight).T @ encoder.speaker
        self._speaker_bias = pack.full(flow.spk_embed_affine_layer.bias) @ encoder.speaker
        self._own = Caches.empty(config, sessions, window, self._device, dtype)
        self._prompts = Caches.empty(config, voices, max_prompt, self._device, dtype)
        self._speakers = self._speaker_bias.expand(voices, -1).clone()
        self._voices = VoiceSlots(voices)
        self._slots = Slots(sessions)
        self._sessions: dict[Handle, Session] = {}
        self._programs: dict[tuple[int, int], Program] = {}
        self._wholes: dict[tuple[int, int], tuple[Program, Tensor, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        self._lock = threading.RLock()

    @property
    def bytes_per_session(self) -> int:
        """Memory of one session's state."""
        return self._own.bytes_per_slot

    @property
    def state_bytes(self) -> dict[str, int]:
        """Memory on the device; all of it is taken when the engine is made."""
        # Without the lock, which a step holds: a length is never half written.
        own, prompts = self._own.bytes_per_slot, self._prompts.bytes_per_slot
        held = {"sessions": own * len(self._sessions), "voices": prompts * len(self._voices)}
        whole = own * self._slots.capacity + prompts * self._voices.capacity
        return held | {"set aside": whole - sum(held.values())}

    def warm(self, batches: Iterable[int] = (1,), frames: Iterable[int] = STREAM_FRAMES) -> None:
        """Make graphs ahead of their first use.

        Args:
            batches: Sessions a step.
            frames: Frames of a chunk.
        """
        with self._lock, torch.inference_mode():
            for length in frames:
                for sessions in batches:
                    self._stream(power_of_two(sessions), program_frames(length))

    def open(self, voice: VoicePrompt, seed: int) -> Handle:
        """Begin an utterance; the caches of the voice are computed once and shared.

        Raises:
            CapacityError: every slot is taken, or as many voices are in use as there is room for.
            InputError: the voice does not fit the model, or the seed is out of range.
        """
        noise.key(seed)
        check_voice(voice, self.config, self._max_prompt)
        prompt = self.config.frames_per_token * len(voice.tokens)
        with self._lock, torch.inference_mode():
            handle = self._slots.take()
            try:
                slot = self._voices.take(voice.digest, lambda slot: self._listen(voice, slot))
            except BaseException:
                self._slots.release(handle)
                raise
            self._own.follow(handle.slot, self._prompts, slot)
            self._sessions[handle] = Session(seed, voice.digest, slot, prompt)
        return handle

    def close(self, handle: Handle) -> None:
        """End a session and free its state at once; a closed or unknown handle is no error."""
        with self._lock:
            session = self._sessions.pop(handle, None)
            if session:
                self._voices.release(session.digest)
                self._slots.release(handle)

    def step(self, work: Sequence[FlowWork]) -> list[Tensor]:
        """Advance each session by one chunk; chunks of like length share each run of a graph.

        Returns:
            Mel float32 [frames, mel_bins] each, on the device and in the order of its current
            stream; without frames for a closed session.

        Raises:
            InputError: a token is outside the codebook, a chunk has nothing to speak, or a session
                has two chunks.
        """
        up = self.config.frames_per_token
        chunks = [(tokens, up * spoken) for tokens, spoken in check_chunks(work, self.config)]
        bins = self.config.flow.output_size
        mels = [torch.empty(0, bins, device=self._device)] * len(work)
        with self._lock, torch.inference_mode():
            groups: dict[int, list[int]] = defaultdict(list)
            for place, (item, (_, frames)) in enumerate(zip(work, chunks, strict=True)):
                if frames and item.handle in self._sessions:
                    groups[program_frames(frames)].append(place)
            for length, places in groups.items():
                for begin in range(0, len(places), self._max_batch):
                    group = places[begin : begin + self._max_batch]
                    rows = [(work[place].handle, *chunks[place]) for place in group]
                    mel = self._advance(rows, length)
                    for row, place in enumerate(group):
                        mels[place] = mel[row, : chunks[place][1]]
        return mels

    def offline(self, utterances: Sequence[tuple[np.ndarray, VoicePrompt, int]]) -> list[Tensor]:
        """Whole utterances at once, every frame of one seeing all of its others.

        Args:
            utterances: For each its tokens [n], its voice and its seed.

        Returns:
            Mel float32 [frames_per_token * n, mel_bins] each, on the device.

        Raises:
            InputError: a token is outside the codebook, or a voice does not fit the model.
        """
        up = self.config.frames_per_token
        wholes = []
        for tokens, voice, seed in utterances:
            noise.key(seed)
            check_voice(voice, self.config)
            tokens = check_tokens(tokens, self.config.flow.vocab_size)
            wholes.append((np.concatenate([voice.tokens, tokens]), voice, seed))
        order = sorted(range(len(wholes)), key=lambda place: len(wholes[place][0]))
        mels: list[Tensor] = [torch.empty(0)] * len(wholes)
        with self._lock, torch.inference_mode():
            for begin in range(0, len(order), self._max_batch):
                group = order[begin : begin + self._max_batch]
                batch = self._whole([wholes[place] for place in group])
                for place, mel in zip(group, batch, strict=True):
                    mels[place] = mel[up * len(wholes[place][1].tokens) :]
        return mels

    def _advance(self, rows: Sequence[tuple[Handle, np.ndarray, int]], length: int) -> Tensor:
        """Mel [at least rows, length, mel_bins] of a chunk of each session."""
        program = self._stream(power_of_two(len(rows)), length)
        program.clear()
        for row, (handle, tokens, frames) in enumerate(rows):
            session = self._sessions[handle]
            line = Line(
                frames, session.seed, session.frames, handle.slot, session.frames,
                session.voice, session.prompt, session.side,
            )  # fmt: skip
            program.set(row, line, tokens)
            session.frames += frames
            session.side = 1 - session.side
        return program.run()

    def _listen(self, voice: VoicePrompt, slot: int) -> None:
        """Fill the caches of a voice by one chunk over its clip.

        Its mel is known, and its first tokens stand for those to come.
        """
        frames = self.config.frames_per_token * len(voice.tokens)
        self._prompts.clear(slot)
        self._speakers[slot] = self._speaker(voice)
        known, speaker = self._known(voice, frames)[None], self._speakers[slot, None]
        program = self._program(
            lambda _: self._condition(speaker, known),
            Memory(self._prompts, None), sessions=1, frames=frames, capture=False,
        )  # fmt: skip
        tokens = np.concatenate([voice.tokens, voice.tokens[: self.config.look_ahead]])
        program.set(0, Line(frames, 0, -frames, slot), tokens)
        program.run()

    def _whole(self, wholes: Sequence[tuple[np.ndarray, VoicePrompt, int]]) -> list[Tensor]:
        """Mel of prompt and utterance of a batch of tokens, prompt first, voice and seed."""
        up = self.config.frames_per_token
        frames = -(-up * max(len(tokens) for tokens, _, _ in wholes) // COARSE) * COARSE
        program, known, speaker = self._offline(power_of_two(len(wholes)), frames)
        program.clear()
        for row, (tokens, voice, seed) in enumerate(wholes):
            known[row].copy_(self._known(voice, frames))
            speaker[row].copy_(self._speaker(voice))
            program.set(row, Line(up * len(tokens), seed, -up * len(voice.tokens)), tokens)
        mel = program.run()
        return [mel[row, : up * len(tokens)] for row, (tokens, _, _) in enumerate(wholes)]

    def _offline(self, sessions: int, frames: int) -> tuple[Program, Tensor, Tensor]:
        """The graph of whole utterances with its known mel and speakers, made now if it is new."""
        if (sessions, frames) not in self._wholes:
            known = torch.zeros(sessions, frames, self._to_condition.shape[0], device=self._device)
            speaker = self._speaker_bias.expand(sessions, -1).clone()
            program = self._program(
                lambda _: self._condition(speaker, known),
                None, sessions=sessions, frames=frames, capture=True,
            )  # fmt: skip
            self._wholes[sessions, frames] = program, known, speaker
        return self._wholes[sessions, frames]

    def _stream(self, sessions: int, frames: int) -> Program:
        """The graph of a step, made now if it is new."""
        if (sessions, frames) not in self._programs:

            def condition(meta: Tensor) -> Tensor:
                speaker = self._speakers[meta[:, kernels.VOICE.value]]
                return speaker[:, None].expand(-1, frames, -1).flatten(0, 1).contiguous()

            self._programs[sessions, frames] = self._program(
                condition, Memory(self._own, self._prompts),
                sessions=sessions, frames=frames, capture=True,
            )  # fmt: skip
        return self._programs[sessions, frames]

    def _program(
        self, condition: Callable[[Tensor], Tensor], memory: Memory | None, *,
        sessions: int, frames: int, capture: bool,
    ) -> Program:  # fmt: skip
        tokens = frames // self.config.frames_per_token + self.config.look_ahead
        return Program(
            self._encoder, self._estimator, condition, memory, sessions=sessions, frames=frames,
            tokens=tokens, device=self._device, capture=capture, pool=self._pool, dtype=self._dtype,
        )  # fmt: skip

    def _condition(self, speaker: Tensor, known: Tensor) -> Tensor:
        """From speakers [n, hidden] and known mel [n, frames, mel_bins]."""
        return (speaker[:, None] + known @ self._to_condition).flatten(0, 1)

    def _speaker(self, voice: VoicePrompt) -> Tensor:
        unit = torch.from_numpy(unit_norm(voice.embedding)).to(self._device)
        return unit @ self._speaker_weight + self._speaker_bias

    def _known(self, voice: VoicePrompt, frames: int) -> Tensor:
        """The voice's mel in its frames, then zeros, [frames, mel_bins]."""
        prompt = self.config.frames_per_token * len(voice.tokens)
        missing = max(0, prompt - len(voice.mel))
        mel = np.pad(voice.mel, ((0, missing), (0, 0)), mode="edge")[:prompt]
        mel = np.pad(mel, ((0, frames - prompt), (0, 0))).astype(np.float32)
        return torch.from_numpy(mel).to(self._device)


def program_frames(frames: int) -> int:
    """Frames of the graph that takes so many."""
    fitting = [length for length in STREAM_FRAMES if length >= frames]
    return fitting[0] if fitting else -(-frames // COARSE) * COARSE


def power_of_two(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()
