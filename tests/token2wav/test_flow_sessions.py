"""Sessions and voices of the flow over graphs, and what it refuses."""

import threading
import weakref

import numpy as np
import pytest

from duologue.errors import CapacityError, ConfigError, EngineError, InputError
from duologue.token2wav.config import TINY
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.step import FlowWork, VoicePrompt
from tests.token2wav.flows import (
    AHEAD,
    CODES,
    FEW_STEPS,
    OTHER,
    VOICE,
    chunks_of,
    make_tokens,
    speak,
    tiny_graphs,
)


@pytest.fixture
def graphs() -> FlowGraphs:
    return tiny_graphs()


@pytest.fixture
def flow(graphs) -> GraphFlow:
    return GraphFlow(graphs, FEW_STEPS, capacity=4, window=20)


def test_voice_is_computed_once_and_read_only(graphs, flow):
    first, second = flow.open(VOICE, 1), flow.open(VOICE, 2)
    assert len(graphs.encoder_stream.calls) == 1
    prompts = [flow.snapshot(handle).prompt for handle in (first, second)]
    assert prompts[0] is prompts[1]
    with pytest.raises(ValueError, match="read-only"):
        prompts[0].estimator.ring[:] = 0


def test_evicted_voice_stays_with_its_session(graphs):
    flow = GraphFlow(graphs, FEW_STEPS, window=20, voices=1)
    chunks = chunks_of(make_tokens(101, 40), [12, 12])
    expected = speak(flow, VOICE, 1, make_tokens(101, 40), [12, 12])
    handle = flow.open(VOICE, 1)
    mels = [flow.step([FlowWork(handle, *chunks[0])])[0]]
    flow.close(flow.open(OTHER, 2))
    mels += [flow.step([FlowWork(handle, *chunk)])[0] for chunk in chunks[1:]]
    np.testing.assert_array_equal(np.concatenate(mels), expected)
    graphs.encoder_stream.calls.clear()
    flow.close(flow.open(VOICE, 3))
    assert not graphs.encoder_stream.calls, "the caches that a session holds were made again"
    flow.close(handle)
    flow.close(flow.open(OTHER, 2))
    assert len(graphs.encoder_stream.calls) == 1, "an evicted voice outlived its last session"


def test_capacity(flow):
    handles = [flow.open(VOICE, seed) for seed in range(4)]
    with pytest.raises(CapacityError, match="all 4 sessions"):
        flow.open(VOICE, 4)
    flow.close(handles[2])
    assert flow.open(VOICE, 4).slot == handles[2].slot


def test_failed_open_takes_no_slot(graphs):
    flow = GraphFlow(graphs, FEW_STEPS, capacity=1)
    graphs.encoder_stream.before = fail
    with pytest.raises(EngineError, match="the graph broke"):
        flow.open(VOICE, 1)
    graphs.encoder_stream.before = lambda: None
    flow.open(VOICE, 1)


def test_close_frees_at_once(flow):
    handle = flow.open(VOICE, 1)
    flow.step([FlowWork(handle, make_tokens(111, 8), False)])
    memory = weakref.ref(flow._sessions[handle].memory)
    flow.close(handle)
    assert memory() is None
    flow.close(handle)


def test_stale_handle_reaches_no_one(flow):
    stale = flow.open(VOICE, 1)
    flow.close(stale)
    tenant = flow.open(VOICE, 2)
    assert tenant.slot == stale.slot
    tokens = make_tokens(112, 9)
    expected = speak(flow, VOICE, 2, tokens, [])
    flow.close(stale)
    mels = flow.step([FlowWork(stale, tokens, True), FlowWork(tenant, tokens, True)])
    assert len(mels[0]) == 0
    np.testing.assert_allclose(mels[1], expected, atol=1e-5)
    with pytest.raises(InputError, match="is closed"):
        flow.snapshot(stale)
    with pytest.raises(InputError, match="is closed"):
        flow.restore(stale, flow.snapshot(tenant))


def test_close_from_another_thread_during_a_step(graphs, flow):
    """It does not wait; the step gives nothing for it, and all for the others."""
    tokens = make_tokens(113, 9)
    expected = speak(flow, VOICE, 2, tokens, [])
    closed, other = flow.open(VOICE, 1), flow.open(VOICE, 2)
    memory = weakref.ref(flow._sessions[closed].memory)

    def close():
        thread = threading.Thread(target=flow.close, args=(closed,))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()

    graphs.estimator_stream.before = close
    mels = flow.step([FlowWork(closed, tokens, True), FlowWork(other, tokens, True)])
    assert len(mels[0]) == 0
    np.testing.assert_allclose(mels[1], expected, atol=1e-5)
    assert memory() is None


def fail():
    raise EngineError("the graph broke")


def test_failed_step_advances_nobody(graphs, flow):
    chunks = chunks_of(make_tokens(114, 30), [12])
    expected = speak(flow, VOICE, 1, make_tokens(114, 30), [12])
    handle, other = flow.open(VOICE, 1), flow.open(VOICE, 2)
    got = flow.step([FlowWork(handle, *chunks[0])])
    work = [FlowWork(handle, *chunks[1]), FlowWork(other, make_tokens(115, 5), True)]
    countdown = iter([None, None, None])  # The second group breaks in its last Euler step.
    graphs.estimator_stream.before = lambda: next(countdown, fail) and fail()
    with pytest.raises(EngineError):
        flow.step(work)
    graphs.estimator_stream.before = lambda: None
    got += flow.step(work[:1])
    np.testing.assert_array_equal(np.concatenate(got), expected)


# What is refused.


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([1, 2, CODES, 4, 5]), rf"tokens\[2\]: found {CODES}, expected 0 to {CODES - 1}"),
        (np.array([1, 2, 3, 4, -1]), r"tokens\[4\]: found -1, expected 0 to 6560"),
        (np.array([1, 2, 3, 4, 151_700]), "found 151700"),
        (np.array([1.0, 2.0, 3.0, 4.0]), r"found float64 \[4\], expected one row of whole numbers"),
        (np.array([[1, 2, 3, 4]]), r"found int64 \[1, 4\]"),
        (np.array([True] * 4), "found bool"),
        (make_tokens(1, AHEAD), "found 3 tokens, expected more than the look-ahead of 3"),
    ],
)
def test_tokens_that_are_none(flow, tokens, message):
    """They are refused before anybody's state changes, never spoken as noise."""
    good = make_tokens(121, 9)
    handle, other = flow.open(VOICE, 1), flow.open(VOICE, 2)
    expected = speak(flow, VOICE, 2, good, [])
    with pytest.raises(InputError, match=message):
        flow.step([FlowWork(other, good, True), FlowWork(handle, tokens, False)])
    np.testing.assert_array_equal(flow.step([FlowWork(other, good, True)])[0], expected)


def test_stray_tokens_offline(flow):
    with pytest.raises(InputError, match="found 6561, expected 0 to 6560"):
        flow.offline([(np.array([0, CODES]), VOICE, 1)])


def test_two_chunks_of_one_session(flow):
    work = FlowWork(flow.open(VOICE, 1), make_tokens(122, 9), False)
    with pytest.raises(InputError, match="two chunks"):
        flow.step([work, work])


def bad_voice(**changes) -> VoicePrompt:
    fields = {name: getattr(VOICE, name) for name in ("tokens", "mel", "embedding", "digest")}
    return VoicePrompt(**(fields | changes))


@pytest.mark.parametrize(
    ("voice", "message"),
    [
        (bad_voice(tokens=VOICE.tokens[:2]), "found 2 tokens, expected at least 3"),
        (bad_voice(tokens=VOICE.tokens + CODES), r"tokens of the voice\[0\]: found"),
        (bad_voice(mel=VOICE.mel[:-3]), r"found \[13, 80\], expected \[about 16, 80\]"),
        (bad_voice(mel=VOICE.mel.T), r"found \[80, 16\]"),
        (bad_voice(embedding=VOICE.embedding[None]), r"found \[1, 192\], expected \[192\]"),
        (bad_voice(mel=VOICE.mel * np.nan), "not finite"),
    ],
)
def test_voice_that_does_not_fit(flow, voice, message):
    with pytest.raises(InputError, match=message):
        flow.open(voice, 1)


def test_seed_and_window_out_of_range(graphs, flow):
    with pytest.raises(InputError, match="seed: found -1"):
        flow.open(VOICE, -1)
    with pytest.raises(ConfigError, match="found 15 frames, expected a multiple of 2"):
        GraphFlow(graphs, TINY, window=15)
