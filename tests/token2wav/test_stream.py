"""One utterance: the same however its tokens come, and again from its log."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.errors import CapacityError, ConfigError, EngineError, InputError, UsageError
from duologue.token2wav.config import TINY
from duologue.token2wav.step import Handle, VoicePrompt
from duologue.token2wav.stream import Chunk, Chunker, Schedule, Utterance, replay

AHEAD, CODES = TINY.look_ahead, TINY.flow.vocab_size
VOICE = VoicePrompt(np.zeros(3, np.int32), np.zeros((6, 80)), np.zeros(192), "a voice")


class FakeFlow:
    """A frame of mel is the number of its token, its chunk and the seed."""

    config = TINY

    def __init__(self):
        self.open_handles: dict[Handle, list[int]] = {}
        self.count = 0

    def open(self, voice, seed):
        self.count += 1
        handle = Handle(0, self.count)
        self.open_handles[handle] = [seed, 0]
        return handle

    def step(self, work):
        [item] = work
        state = self.open_handles[item.handle]
        tokens = item.tokens if item.final else item.tokens[:-AHEAD]
        state[1] += 1
        return [np.stack([tokens, np.full(len(tokens), state[1]), np.full(len(tokens), state[0])])]

    def close(self, handle):
        self.open_handles.pop(handle, None)


class FakeVocoder(FakeFlow):
    """Holds back one sample."""

    def __init__(self):
        super().__init__()
        self.refuses = self.breaks = False

    def open(self, seed):
        if self.refuses:
            raise CapacityError("no vocoder is free")
        handle = super().open(None, seed)
        self.open_handles[handle] = []
        return handle

    def step(self, work):
        if self.breaks:
            raise EngineError("the vocoder broke")
        [item] = work
        held = self.open_handles[item.handle]
        held += np.dot([1, 64, 4096], item.mel).tolist()
        ready = len(held) if item.final else max(0, len(held) - 1)
        samples, held[:] = held[:ready], held[ready:]
        return [np.array(samples, np.float32)]


@pytest.fixture
def flow():
    return FakeFlow()


@pytest.fixture
def vocoder():
    return FakeVocoder()


def split(tokens: np.ndarray, cuts: list[int]) -> list[np.ndarray]:
    return np.split(tokens, sorted(cut % (len(tokens) + 1) for cut in cuts))


def chunked(parts: list[np.ndarray], schedule: Schedule) -> list[tuple[list[int], bool]]:
    chunker = Chunker(schedule, AHEAD, CODES)
    chunks = [chunk for part in parts for chunk in chunker.push(part)]
    return [(chunk.tokens.tolist(), chunk.final) for chunk in [*chunks, chunker.finish()]]


schedules = st.builds(Schedule, st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))


@given(schedules, st.integers(0, 60), st.lists(st.integers(0, 60), max_size=12))
def test_chunks_do_not_depend_on_pushing(schedule, n, cuts):
    tokens = np.arange(n)
    chunks = chunked(split(tokens, cuts), schedule)
    assert chunks == chunked([tokens], schedule)
    assert chunks == chunked(list(tokens[:, None]), schedule)
    spoken = [part if final else part[:-AHEAD] for part, final in chunks]
    assert sum(spoken, []) == list(range(n)), "every token is spoken once"
    assert [final for _, final in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [len(part) for part in spoken[:-1]] == [schedule.size(i) for i in range(len(chunks) - 1)]
    # The rest is no whole chunk: nothing waits that could have been spoken.
    assert len(chunks[-1][0]) < schedule.size(len(chunks) - 1) + AHEAD


def test_default_schedule():
    lengths = [len(part) for part, _ in chunked([np.arange(90)], Schedule())]
    assert lengths == [12 + AHEAD, 15 + AHEAD, 25 + AHEAD, 25 + AHEAD, 13]


def test_a_chunk_is_ready_with_its_last_token():
    chunker = Chunker(Schedule((4,)), AHEAD, CODES)
    assert chunker.push(np.arange(4 + AHEAD - 1)) == []
    [chunk] = chunker.push(np.array([9]))
    assert isinstance(chunk, Chunk)
    assert len(chunk.tokens) == 4 + AHEAD


@pytest.mark.parametrize("sizes", [(), (5, 0), (1.5,), ("3",), ((4,),), 5, None])
def test_schedule_that_is_none(sizes):
    with pytest.raises(ConfigError, match="chunk sizes: found"):
        Schedule(sizes)


@given(schedules, st.integers(0, 60), st.lists(st.integers(0, 60), max_size=6))
def test_samples_do_not_depend_on_pushing_and_replay(schedule, n, cuts):
    flow, vocoder, tokens = FakeFlow(), FakeVocoder(), np.arange(n)
    with Utterance(flow, vocoder, VOICE, 5, schedule) as whole:
        expected = np.concatenate([whole.push(tokens), whole.finish()])
    with Utterance(flow, vocoder, VOICE, 5, schedule) as utterance:
        got = [utterance.push(part) for part in split(tokens, cuts)]
        got.append(utterance.finish())
    np.testing.assert_array_equal(np.concatenate(got), expected)
    assert len(expected) == n
    assert utterance.log == whole.log
    np.testing.assert_array_equal(replay(utterance.log, flow, vocoder, VOICE), expected)
    assert not flow.open_handles
    assert not vocoder.open_handles


def test_replay_of_one_cut_short(flow, vocoder):
    """It ends where the first one ended, without the rest that was never spoken."""
    with Utterance(flow, vocoder, VOICE, 5) as utterance:
        heard = utterance.push(np.arange(35))
    np.testing.assert_array_equal(replay(utterance.log, flow, vocoder, VOICE), heard)
    assert len(heard) == 26


def test_replay_with_another_voice(flow, vocoder):
    with Utterance(flow, vocoder, VOICE, 5) as utterance:
        pass
    other = VoicePrompt(VOICE.tokens, VOICE.mel, VOICE.embedding, "another")
    with pytest.raises(InputError, match="found another, expected a voice"):
        replay(utterance.log, flow, vocoder, other)


def test_finish_frees_both(flow, vocoder):
    utterance = Utterance(flow, vocoder, VOICE, 5)
    assert flow.open_handles
    assert vocoder.open_handles
    utterance.finish()
    assert not flow.open_handles
    assert not vocoder.open_handles


@pytest.mark.parametrize("end", [Utterance.finish, Utterance.cancel])
def test_an_ended_utterance_takes_no_more(flow, vocoder, end):
    utterance = Utterance(flow, vocoder, VOICE, 5)
    end(utterance)
    utterance.cancel()
    for call in (lambda: utterance.push(np.arange(3)), utterance.finish):
        with pytest.raises(UsageError, match="is over"):
            call()


def test_an_error_frees_both(flow, vocoder):
    vocoder.breaks = True
    with pytest.raises(EngineError), Utterance(flow, vocoder, VOICE, 5) as utterance:
        utterance.push(np.arange(30))
    assert not flow.open_handles
    assert not vocoder.open_handles


def test_sound_that_is_not_finite_is_never_heard(flow, vocoder, monkeypatch):
    monkeypatch.setattr(vocoder, "step", lambda work: [np.array([0.1, np.nan], np.float32)])
    utterance = Utterance(flow, vocoder, VOICE, 5)
    with pytest.raises(EngineError, match="samples that are not finite"):
        utterance.push(np.arange(30))
    assert not flow.open_handles
    assert not vocoder.open_handles


def test_without_a_vocoder_the_flow_is_freed(flow, vocoder):
    vocoder.refuses = True
    with pytest.raises(CapacityError):
        Utterance(flow, vocoder, VOICE, 5)
    assert not flow.open_handles


def test_stray_tokens_are_refused_and_not_taken(flow, vocoder):
    """An id of a language model with its offset still on (Step-Audio-EditX, issue 66)."""
    with Utterance(flow, vocoder, VOICE, 5) as utterance:
        utterance.push(np.arange(5))
        with pytest.raises(InputError, match=r"tokens\[1\]: found 151696, expected 0 to 6560"):
            utterance.push(np.array([1, 151_696]))
        assert utterance.log.tokens == [0, 1, 2, 3, 4]
        assert len(utterance.finish()) == 5


@pytest.mark.parametrize(
    "tokens",
    [np.zeros((2, 3), int), np.zeros((2, 0), int), [[1], [2, 3]], np.ones(3), [None], 7, [2**70]],
)
def test_what_is_no_row_of_tokens_is_not_taken(flow, vocoder, tokens):
    with Utterance(flow, vocoder, VOICE, 5) as utterance:
        with pytest.raises(InputError, match="tokens: found .*, expected one row of whole numbers"):
            utterance.push(tokens)
        assert utterance.log.tokens == []
        assert len(utterance.push([])) == len(utterance.finish()) == 0
