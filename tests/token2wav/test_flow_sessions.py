"""Sessions and voices of the flow over graphs, and what it refuses."""

import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from duologue.errors import CapacityError, ConfigError, EngineError, InputError
from duologue.token2wav.config import TINY
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.step import FlowWork
from tests.token2wav.flows import (
    AHEAD,
    CODES,
    FEW_STEPS,
    OTHER,
    VOICE,
    chunks_of,
    make_tokens,
    make_voice,
    speak,
)


def test_voice_is_computed_once_and_read_only(graphs, flow):
    first, second = flow.open(VOICE, 1), flow.open(VOICE, 2)
    assert len(graphs.encoder_stream.calls) == 1
    prompts = [flow.snapshot(handle).prompt for handle in (first, second)]
    assert prompts[0] is prompts[1]
    with pytest.raises(ValueError, match="read-only"):
        prompts[0].memory.estimator.ring[:] = 0


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


def test_sessions_do_not_wait_for_a_new_voice(graphs, flow):
    """They say what they say without one, and voices that are known open at once."""
    tokens = make_tokens(102, 30)
    expected = speak(flow, VOICE, 1, tokens, [12])
    handle, computing, spoken = flow.open(VOICE, 1), threading.Event(), threading.Event()
    opened = []

    def wait():
        if threading.current_thread() in openers:
            computing.set()
            assert spoken.wait(30)

    # Two sessions want the new voice at once.
    openers = [
        threading.Thread(target=lambda: opened.append(flow.open(OTHER, 1))) for _ in range(2)
    ]
    graphs.encoder_stream.before = wait
    graphs.encoder_stream.calls.clear()
    for opener in openers:
        opener.start()
    assert computing.wait(30)
    mels = []

    def run():
        mels.extend(flow.step([FlowWork(handle, *part)])[0] for part in chunks_of(tokens, [12]))
        mels.append(flow.offline([(tokens, VOICE, 1)])[0])
        flow.close(flow.open(VOICE, 2))

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    runner.join(30)
    waited = runner.is_alive()
    spoken.set()
    for opener in openers:
        opener.join(30)
    assert not waited, "sessions waited for the caches of a voice"
    np.testing.assert_array_equal(np.concatenate(mels[:2]), expected)
    first, second = (flow.snapshot(handle).prompt for handle in opened)
    assert first is second
    assert len(graphs.encoder_stream.calls) == 3, "the caches were computed twice"
    graphs.encoder_stream.before = lambda: None
    alone = GraphFlow(graphs, FEW_STEPS, window=20)
    np.testing.assert_array_equal(
        flow.step([FlowWork(opened[0], tokens, True)])[0], speak(alone, OTHER, 1, tokens, [])
    )


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": VOICE.tokens[:2]}, "found 2 tokens, expected at least 3"),
        ({"tokens": VOICE.tokens + CODES}, r"tokens of the voice\[0\]: found"),
        ({"mel": VOICE.mel[:-3]}, r"found \[13, 80\], expected \[about 16, 80\]"),
        ({"mel": VOICE.mel.T}, r"found \[80, 16\]"),
        ({"embedding": VOICE.embedding[None]}, r"found \[1, 192\], expected \[192\]"),
        ({"mel": VOICE.mel * np.nan}, "not finite"),
        ({"mel": VOICE.mel.astype(np.float64) * 1e300}, "not finite"),
        ({"mel": VOICE.mel.tolist()}, "mel of the voice: found list"),
        ({"mel": VOICE.mel.astype(object)}, "mel of the voice: found object"),
        ({"embedding": list(VOICE.embedding)}, "embedding of the voice: found list"),
        ({"embedding": VOICE.embedding.astype(np.int32)}, "embedding of the voice: found int32"),
    ],
)
def test_voice_that_does_not_fit(flow, changes, message):
    with pytest.raises(InputError, match=message):
        flow.open(replace(VOICE, **changes), 1)


def test_voice_longer_than_the_longest_prompt(graphs):
    flow, longest = GraphFlow(graphs, FEW_STEPS, capacity=1, max_prompt=12), make_voice(3, 6)
    flow.close(flow.open(longest, 1))
    with pytest.raises(InputError, match=r"found 14 frames, expected at most 12; .* max_prompt"):
        flow.open(make_voice(3, 7), 1)
    flow.open(longest, 1)


@pytest.mark.parametrize("largest", [1e38, 1e-8])
def test_the_length_of_an_embedding_does_not_matter(flow, largest):
    scale = np.float32(largest / np.abs(VOICE.embedding).max())
    scaled = replace(VOICE, embedding=VOICE.embedding * scale, digest="scaled")
    tokens = make_tokens(123, 5)
    np.testing.assert_allclose(
        speak(flow, scaled, 1, tokens, []), speak(flow, VOICE, 1, tokens, []), atol=1e-4
    )


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, None, "7"])
def test_seed_that_is_none(flow, seed):
    with pytest.raises(InputError, match=f"seed: found {seed!r}, expected "):
        flow.open(VOICE, seed)


@pytest.mark.parametrize("size", ["window", "max_prompt"])
@pytest.mark.parametrize("frames", [0, 15, -2])
def test_sizes_that_hold_no_whole_tokens(graphs, size, frames):
    with pytest.raises(ConfigError, match=f"{size}: found {frames} frames, expected a multiple of"):
        GraphFlow(graphs, TINY, **{size: frames})
