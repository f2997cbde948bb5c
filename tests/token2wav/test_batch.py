"""Continuous batching: who goes when, and what one failure costs the others."""

import threading
from queue import Queue

import numpy as np
import pytest

from duologue.errors import CapacityError, ConfigError, EngineError, InputError, UsageError
from duologue.token2wav.batch import Batcher
from duologue.token2wav.config import TINY
from duologue.token2wav.step import Handle, Slots, VoicePrompt
from duologue.token2wav.stream import Schedule
from tests.fakes import ManualClock

CHUNKS = Schedule((2,))
AHEAD = TINY.look_ahead
VOICE = VoicePrompt(np.arange(4, dtype=np.int32), np.zeros((8, 80), np.float32), np.ones(192), "v")


class ScriptedFlow:
    """A flow whose mel is its tokens; it waits at `gate`, and fails at tokens of `bad`."""

    config = TINY

    def __init__(self, capacity=8):
        self.slots = Slots(capacity)
        self.batches: list[list[int]] = []
        self.bad: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def open(self, voice, seed) -> Handle:
        return self.slots.take()

    def step(self, work):
        self.entered.release()
        self.gate.wait()
        if any(self.bad.intersection(item.tokens.tolist()) for item in work):
            raise RuntimeError("out of memory")
        self.batches.append([int(item.tokens[0]) for item in work if len(item.tokens)])
        ahead = [0 if item.final else AHEAD for item in work]
        return [
            item.tokens[: len(item.tokens) - n].astype(np.float32)
            for item, n in zip(work, ahead, strict=True)
        ]

    def close(self, handle):
        self.slots.release(handle)


class ScriptedVocoder:
    """Its samples are the mel."""

    def __init__(self):
        self.slots = Slots(99)

    def open(self, seed):
        return self.slots.take()

    def step(self, work):
        return [item.mel for item in work]

    def close(self, handle):
        self.slots.release(handle)


@pytest.fixture
def flow():
    return ScriptedFlow()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def vocoder():
    return ScriptedVocoder()


@pytest.fixture
def batcher(flow, vocoder, clock):
    with Batcher(flow, vocoder, max_batch=3, clock=clock) as batcher:
        yield batcher
        flow.gate.set()


class Ear(Queue):
    """Collects what is emitted."""

    def to_the_end(self) -> np.ndarray:
        parts = []
        while True:
            said = self.get(timeout=10)
            if said.error:
                raise said.error
            parts.append(said.samples)
            if said.final:
                return np.concatenate(parts)


def begin(batcher, tokens=()):
    ear = Ear()
    utterance = batcher.open(VOICE, 1, ear.put, CHUNKS)
    utterance.push(np.array(tokens, np.int32))
    return utterance, ear


def hold(flow, batcher):
    """Keep the engine busy with an utterance of its own until the gate opens."""
    flow.gate.clear()
    flow.entered = threading.Semaphore(0)
    utterance, _ = begin(batcher, range(900, 902 + AHEAD))
    assert flow.entered.acquire(timeout=10)
    return utterance


def test_tokens_come_out_in_order_and_the_slots_are_free_again(batcher, flow, vocoder):
    utterance, ear = begin(batcher, range(9))
    utterance.push(np.arange(9, 11))
    utterance.finish()
    assert ear.to_the_end().tolist() == list(range(11))
    assert not flow.slots.generations and not vocoder.slots.generations
    with pytest.raises(UsageError, match="over"):
        utterance.push(np.arange(3))
    utterance.cancel()


def test_what_is_ready_goes_together_one_chunk_of_a_session(batcher, flow):
    hold(flow, batcher)
    ears = []
    for first in (10, 20, 30, 40):
        utterance, ear = begin(batcher, range(first, first + 4 + AHEAD))
        utterance.finish()
        ears.append(ear)
    flow.gate.set()
    for first, ear in zip((10, 20, 30, 40), ears, strict=True):
        assert ear.to_the_end().tolist() == list(range(first, first + 4 + AHEAD))
    assert all(len(batch) <= 3 for batch in flow.batches)
    tens = [[first // 10 for first in batch] for batch in flow.batches]
    assert all(len(set(batch)) == len(batch) for batch in tens)
    assert tens[1] == [1, 2, 3]


def test_who_runs_out_of_sound_first_goes_first(batcher, flow, clock):
    batcher.rate_hz = 1  # a token is a second
    rich, rich_ear = begin(batcher, range(10, 10 + 4 + AHEAD))
    poor, poor_ear = begin(batcher, range(20, 22 + AHEAD))
    assert len(rich_ear.get(timeout=10).samples) == 2
    assert len(rich_ear.get(timeout=10).samples) == 2
    assert len(poor_ear.get(timeout=10).samples) == 2
    hold(flow, batcher)
    new = [begin(batcher, range(n, n + 2 + AHEAD)) for n in (30, 40)]
    clock.now_s = 1.0
    rich.push(np.arange(50, 52))
    poor.push(np.arange(60, 62))
    before = len(flow.batches)
    flow.gate.set()
    for _, ear in [*new, (None, poor_ear), (None, rich_ear)]:
        ear.get(timeout=10)
    assert [first // 10 for first in flow.batches[before + 1]] == [3, 4, 2]
    assert [first // 10 for first in flow.batches[before + 2]] == [1]


def test_a_cancelled_utterance_says_nothing_more(batcher, flow):
    flow.gate.clear()
    utterance, ear = begin(batcher, range(9))
    assert flow.entered.acquire(timeout=10)
    utterance.cancel()
    flow.gate.set()
    other, other_ear = begin(batcher, range(10))
    other.finish()
    assert len(other_ear.to_the_end()) == 10
    assert ear.empty() and not flow.slots.generations


def test_one_that_fails_spares_the_others(batcher, flow):
    hold(flow, batcher)
    flow.bad = {21}
    good, good_ear = begin(batcher, range(10, 12 + AHEAD))
    bad, bad_ear = begin(batcher, range(20, 22 + AHEAD))
    good.finish(), bad.finish()
    flow.gate.set()
    assert good_ear.to_the_end().tolist() == list(range(10, 12 + AHEAD))
    with pytest.raises(EngineError, match="out of memory"):
        bad_ear.to_the_end()
    with pytest.raises(UsageError, match="over"):
        bad.push(np.arange(3))


def test_sound_that_is_not_finite_ends_its_own_utterance_only(batcher, flow, vocoder, monkeypatch):
    step = vocoder.step

    def overflows_at_21(work):
        return [np.where(samples == 21, np.inf, samples) for samples in step(work)]

    monkeypatch.setattr(vocoder, "step", overflows_at_21)
    hold(flow, batcher)
    good, good_ear = begin(batcher, range(10, 12 + AHEAD))
    bad, bad_ear = begin(batcher, range(20, 22 + AHEAD))
    good.finish(), bad.finish()
    flow.gate.set()
    assert good_ear.to_the_end().tolist() == list(range(10, 12 + AHEAD))
    with pytest.raises(EngineError, match="samples that are not finite"):
        bad_ear.to_the_end()


def test_tokens_outside_the_codebook_are_refused_and_the_utterance_goes_on(batcher):
    utterance, ear = begin(batcher, range(4))
    with pytest.raises(InputError, match="6561"):
        utterance.push(np.array([4, 6561]))
    utterance.push(np.array([4]))
    utterance.finish()
    assert ear.to_the_end().tolist() == list(range(5))


def test_beyond_capacity_is_a_refusal(batcher, flow):
    begun = [begin(batcher) for _ in range(8)]
    with pytest.raises(CapacityError, match="taken"):
        begin(batcher)
    begun[0][0].cancel()
    begin(batcher)[0].cancel()


def test_an_engine_that_is_behind_refuses_new_sessions(batcher, flow, clock):
    hold(flow, batcher)
    waiting, ear = begin(batcher, range(2 + AHEAD))
    clock.now_s = 0.6
    with pytest.raises(CapacityError, match=r"0\.6 s behind"):
        begin(batcher)
    flow.gate.set()
    assert len(ear.get(timeout=10).samples) == 2
    begin(batcher)[0].cancel()


def test_a_closed_batcher_ends_all(flow, vocoder):
    batcher = Batcher(flow, vocoder)
    utterance, _ = begin(batcher)
    batcher.close()
    assert not flow.slots.generations and not vocoder.slots.generations
    with pytest.raises(UsageError, match="over"):
        utterance.push(np.arange(3))
    with pytest.raises(UsageError, match="closed"):
        begin(batcher)


def test_a_listener_that_fails_ends_its_own_utterance_only(batcher, flow):
    def fails(said):
        raise ZeroDivisionError

    broken = batcher.open(VOICE, 1, fails, CHUNKS)
    broken.push(np.arange(2 + AHEAD))
    good, ear = begin(batcher, range(10))
    good.finish()
    assert len(ear.to_the_end()) == 10
    with pytest.raises(UsageError, match="over"):
        broken.push(np.arange(3))
    assert not flow.slots.generations


def test_a_listener_may_cancel_and_close(flow, vocoder):
    ears = Queue()
    batcher = Batcher(flow, vocoder)
    utterance = batcher.open(
        VOICE, 1, lambda said: (utterance.cancel(), batcher.close(), ears.put(said)), CHUNKS
    )
    utterance.push(np.arange(2 + AHEAD))
    assert len(ears.get(timeout=10).samples) == 2
    batcher.close()
    assert not flow.slots.generations


def test_an_engine_that_loses_results_is_an_error(batcher, vocoder, monkeypatch):
    monkeypatch.setattr(vocoder, "step", lambda work: [])
    utterance, ear = begin(batcher, range(2 + AHEAD))
    with pytest.raises(EngineError, match="0 results for 1"):
        ear.to_the_end()


def test_a_slow_language_model_is_not_a_slow_engine(batcher, flow, clock):
    batcher.rate_hz = 1
    utterance, ear = begin(batcher, range(2 + AHEAD))
    ear.get(timeout=10)
    clock.now_s = 60.0
    hold(flow, batcher)
    utterance.push(np.arange(2))
    begin(batcher)[0].cancel()


def test_a_batcher_closed_while_a_voice_opens_leaves_nothing(flow, vocoder, monkeypatch):
    batcher = Batcher(flow, vocoder)
    opened = flow.open

    def slow(voice, seed):
        handle = opened(voice, seed)
        batcher.close()
        return handle

    monkeypatch.setattr(flow, "open", slow)
    with pytest.raises(UsageError, match="closed"):
        begin(batcher)
    assert not flow.slots.generations and not vocoder.slots.generations


def test_a_batch_of_none_is_refused(flow, vocoder):
    with pytest.raises(ConfigError, match="max_batch: found 0"):
        Batcher(flow, vocoder, max_batch=0)
