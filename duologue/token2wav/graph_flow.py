"""Speech tokens to mel with any engine: sessions over the numerics of `solver`.

A session attends to the whole prompt of its voice and to the newest `window` frames of its own, at
their true distances, so its memory is constant however long it talks.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from duologue.errors import InputError
from duologue.token2wav import noise
from duologue.token2wav.checks import (
    check_chunks,
    check_tokens,
    check_voice,
    check_whole_tokens,
)
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.prompts import Shared
from duologue.token2wav.solver import FlowGraphs, Row, Solver
from duologue.token2wav.step import FlowWork, Handle, Slots, VoicePrompt
from duologue.token2wav.window import Memory


@dataclass(frozen=True, slots=True)
class Lead:
    """The end of a voice's clip, which is solved once more with an utterance's first chunk.

    Attributes:
        tokens: int32 [n]; none unless the model `reopens_prompt`.
        start: Noise, float32 [frames_per_token * n, mel_bins].
        cond: Mel, of the same shape.
    """

    tokens: np.ndarray
    start: np.ndarray
    cond: np.ndarray


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Prompt:
    """What a voice's sessions share: the caches of its clip, without the lead, and the lead."""

    memory: Memory
    lead: Lead

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.memory.nbytes + self.lead.start.nbytes + self.lead.cond.nbytes


@dataclass(slots=True)
class Session:
    """One utterance on its way.

    Attributes:
        seed: Of its noise.
        speaker: float32 [mel_bins].
        prompt: What came before its first frame; shared and read-only.
        memory: What it has said so far, the lead included.
    """

    seed: int
    speaker: np.ndarray
    prompt: Prompt
    memory: Memory

    def copy(self) -> "Session":
        """One that goes its own way, with the same prompt."""
        return replace(self, memory=self.memory.copy())


class GraphFlow:
    """The flow over four graphs, on numpy arrays; a `FlowStep`.

    The noise of a frame depends on the utterance's seed and on the frame's index, 0 being the first
    frame behind the prompt, both in `step` and `offline`. That of the prompt is a fixed one.

    Any thread may call any method. Steps take turns; what needs no session's state, the caches of a
    new voice and whole utterances, is computed beside them.

    Args:
        graphs: The graphs, of any engine.
        config: Sizes of the model.
        capacity: Sessions at once.
        window: Mel frames of its own past that a session attends to.
        voices: Voices kept ready when nobody uses them.
        max_prompt: Mel frames of the longest prompt of a session, 30 s.

    Raises:
        ConfigError: a size that does not hold whole tokens.
    """

    def __init__(
        self,
        graphs: FlowGraphs,
        config: Token2wavConfig,
        *,
        capacity: int = 8,
        window: int = 100,
        voices: int = 8,
        max_prompt: int = 1500,
    ):
        check_whole_tokens(config, window=window, max_prompt=max_prompt)
        self.config = config
        self._solver = Solver(graphs, config)
        self._window, self._max_prompt = window, max_prompt
        self._prompts: Shared[Prompt] = Shared(voices)
        self._slots = Slots(capacity)
        self._sessions: dict[Handle, Session] = {}
        self._running = threading.Lock()
        self._table = threading.Lock()

    @property
    def state_bytes(self) -> dict[str, int]:
        """Memory of the open sessions and of the voices."""
        with self._table:
            sessions = list(self._sessions.values())
        return {
            "sessions": sum(session.memory.nbytes for session in sessions),
            "voices": sum(prompt.nbytes for prompt in self._prompts),
        }

    def open(self, voice: VoicePrompt, seed: int) -> Handle:
        """Begin an utterance; the caches of the voice are computed once and shared.

        Raises:
            CapacityError: every slot is taken.
            InputError: the voice does not fit the model, or the seed is out of range.
        """
        noise.key(seed)
        check_voice(voice, self.config, self._max_prompt)
        with self._table:
            handle = self._slots.take()
        try:
            prompt = self._prompts.get(voice.digest, lambda: self._listen(voice))
        except BaseException:
            self.close(handle)
            raise
        memory = replace(
            self._solver.blank(self._window // self.config.frames_per_token),
            pre_cache=prompt.memory.pre_cache,
            up_cache=prompt.memory.up_cache,
            conv_cache=prompt.memory.conv_cache,
        )
        with self._table:
            self._sessions[handle] = Session(
                seed, self._solver.speaker(voice.embedding), prompt, memory
            )
        return handle

    def close(self, handle: Handle) -> None:
        """End a session and free its state at once; a closed or unknown handle is no error.

        During a step it is freed after it, and the step gives no frames for it.
        """
        with self._table:
            self._sessions.pop(handle, None)
            self._slots.release(handle)

    def snapshot(self, handle: Handle) -> Session:
        """A copy of a session's state.

        Raises:
            InputError: the session is closed.
        """
        with self._running:
            if handle not in self._sessions:
                raise InputError(f"{handle} is closed; take the snapshot of an open session")
            return self._sessions[handle].copy()

    def restore(self, handle: Handle, session: Session) -> None:
        """Go on from a snapshot, in any open session.

        Raises:
            InputError: the session is closed.
        """
        with self._running, self._table:
            if handle not in self._sessions:
                raise InputError(f"{handle} is closed; open a session to restore into")
            self._sessions[handle] = session.copy()

    def step(self, work: Sequence[FlowWork]) -> list[np.ndarray]:
        """Advance each session by one chunk; chunks of equal length share each run of a graph.

        No session is advanced if an error is raised.

        Returns:
            Mel float32 [frames, mel_bins] each, in the order of `work`; without frames for a
            session that is closed before the end of the step.

        Raises:
            InputError: a token is outside the codebook, a chunk has nothing to speak, or a session
                has two chunks.
            EngineError: a graph failed.
        """
        chunks = check_chunks(work, self.config)
        mels = [np.zeros((0, self.config.flow.output_size), np.float32)] * len(work)
        with self._running:
            groups: dict[int, list[tuple[int, Row]]] = defaultdict(list)
            for place, (item, (tokens, spoken)) in enumerate(zip(work, chunks, strict=True)):
                session = self._sessions.get(item.handle)
                if session and spoken:
                    row = self._row(session, tokens, spoken)
                    groups[len(row.start)].append((place, row))
            advanced = [
                (place, row, mel, advance)
                for group in groups.values()
                for (place, row), (mel, advance) in zip(
                    group, self._solver.advance([row for _, row in group]), strict=True
                )
            ]
            for place, row, mel, advance in advanced:
                if work[place].handle in self._sessions:
                    row.past[-1].extend(advance)
                    _, spoken = chunks[place]
                    mels[place] = mel[-self.config.frames_per_token * spoken :]
        return mels

    def offline(
        self, utterances: Sequence[tuple[np.ndarray, VoicePrompt, int]]
    ) -> list[np.ndarray]:
        """Whole utterances at once, every frame of one seeing all of its others.

        Args:
            utterances: For each its tokens [n], its voice and its seed.

        Returns:
            Mel float32 [frames_per_token * n, mel_bins] each.

        Raises:
            InputError: a token is outside the codebook, or a voice does not fit the model.
            EngineError: a graph failed.
        """
        if not utterances:
            return []
        mels = self._solver.whole([self._whole(*utterance) for utterance in utterances])
        prompts = [self.config.frames_per_token * len(voice.tokens) for _, voice, _ in utterances]
        return [mel[prompt:] for mel, prompt in zip(mels, prompts, strict=True)]

    def _row(self, session: Session, tokens: np.ndarray, spoken: int) -> Row:
        frames, bins = spoken * self.config.frames_per_token, self.config.flow.output_size
        lead, written = session.prompt.lead, session.memory.mel.written
        start = noise.normal(
            session.seed, noise.FLOW, max(0, written - len(lead.start)), frames, bins
        )
        cond = np.zeros_like(start)
        if not written:
            tokens = np.concatenate([lead.tokens, tokens])
            start, cond = np.concatenate([lead.start, start]), np.concatenate([lead.cond, cond])
        return Row(tokens, start, cond, session.speaker, (session.prompt.memory, session.memory))

    def _prompt_row(self, voice: VoicePrompt) -> Row:
        """The voice's own clip: its mel is known, and its first tokens stand for those to come."""
        ahead, bins = self.config.look_ahead, self.config.flow.output_size
        frames = self.config.frames_per_token * len(voice.tokens)
        missing = max(0, frames - len(voice.mel))
        return Row(
            tokens=np.concatenate([voice.tokens, voice.tokens[:ahead]]),
            start=noise.normal(0, noise.PROMPT, 0, frames, bins),
            cond=np.pad(voice.mel[:frames], ((0, missing), (0, 0)), mode="edge").astype(np.float32),
            speaker=self._solver.speaker(voice.embedding),
            past=(self._solver.blank(len(voice.tokens)),),
        )

    def _whole(self, tokens: np.ndarray, voice: VoicePrompt, seed: int) -> Row:
        """A whole utterance behind its prompt."""
        check_voice(voice, self.config)
        tokens = check_tokens(tokens, self.config.flow.vocab_size)
        frames, bins = self.config.frames_per_token * len(tokens), self.config.flow.output_size
        prompt = self._prompt_row(voice)
        start = noise.normal(seed, noise.FLOW, 0, frames, bins)
        return Row(
            tokens=np.concatenate([voice.tokens, tokens]),
            start=np.concatenate([prompt.start, start]),
            cond=np.concatenate([prompt.cond, np.zeros_like(start)]),
            speaker=prompt.speaker,
            past=(),
        )

    def _listen(self, voice: VoicePrompt) -> Prompt:
        """The caches of a voice: one chunk over its clip."""
        row, count = self._prompt_row(voice), len(voice.tokens)
        if self.config.reopens_prompt:
            # What the last ones of the chunk look ahead to is known then: the lead.
            row.tokens, count = voice.tokens, count - self.config.look_ahead
        frames = self.config.frames_per_token * count
        lead = Lead(voice.tokens[count:], row.start[frames:], row.cond[frames:])
        row.start, row.cond = row.start[:frames], row.cond[:frames]
        [(_, advance)] = self._solver.advance([row])
        [memory] = row.past
        memory.extend(advance)
        for array in memory.arrays():
            array.flags.writeable = False
        return Prompt(memory, lead)
