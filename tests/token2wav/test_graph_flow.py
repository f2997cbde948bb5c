"""The flow over torch's graphs: against the public reference, and itself in other orders."""

import gc
import tracemalloc

import numpy as np
import pytest
import torch

from duologue.token2wav import noise
from duologue.token2wav.config import TINY
from duologue.token2wav.flow import Flow
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.step import FlowWork, VoicePrompt
from tests.token2wav import reference
from tests.token2wav.flows import (
    AHEAD,
    BINS,
    FEW_STEPS,
    OTHER,
    VOICE,
    chunks_of,
    graphs_of,
    make_tokens,
    make_voice,
    speak,
)
from tests.token2wav.untrimmed import Untrimmed

# Against the public reference.


@pytest.fixture(scope="module")
def public():
    """The reference, whose noise is what ours takes for prompt and seed 7, and ours."""
    flow = reference.build_flow(TINY.flow, 3)
    ours = Flow(TINY.flow)
    ours.load_state_dict(flow.state_dict())
    prompt = noise.normal(0, noise.PROMPT, 0, 2 * len(VOICE.tokens), BINS)
    start = np.concatenate([prompt, noise.normal(7, noise.FLOW, 0, 400, BINS)])
    flow.decoder.rand_noise = torch.tensor(start.T[None])
    return flow, graphs_of(ours, TINY)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.tensor(array)[None] for array in arrays]


@reference.available
def test_streaming_equals_the_reference_before_it_trims(public):
    theirs, graphs = public
    tokens, spoken = make_tokens(11, 90), [12, 15, 25, 25]
    stream = reference.ReferenceStream(theirs, *tensors(VOICE.tokens, VOICE.mel, VOICE.embedding))
    stream.prompt_frames = 10_000  # It never trims.
    expected = [stream.step(*chunk).numpy() for chunk in chunks_of(tokens, spoken)]
    got = speak(GraphFlow(graphs, TINY, window=200), VOICE, 7, tokens, spoken)
    np.testing.assert_allclose(got, np.concatenate(expected), atol=2e-5)
    assert got.std() > 0.5


@reference.available
def test_offline_equals_the_reference(public):
    theirs, graphs = public
    tokens = make_tokens(12, 31)
    token, prompt, mel, embedding = tensors(tokens, VOICE.tokens, VOICE.mel, VOICE.embedding)
    lengths = [torch.tensor([part.shape[1]]) for part in (token, prompt, mel)]
    expected = theirs.inference(
        token, lengths[0], prompt, lengths[1], mel, lengths[2], embedding, 10
    )
    got = GraphFlow(graphs, TINY).offline([(tokens, VOICE, 7)])[0]
    np.testing.assert_allclose(got, expected[0].T.numpy(), atol=2e-5)


# The window, against caches that are never trimmed but masked.


@pytest.mark.parametrize("spoken", [[5, 5, 5, 5, 5], [1, 2, 13, 1, 14], [30]])
def test_the_window_is_the_prompt_and_the_newest_frames(graphs, spoken):
    """The window is 20 frames: shorter than some chunks, and no multiple of others."""
    tokens = make_tokens(21, sum(spoken) + 6)
    oracle = Untrimmed(graphs, VOICE, 9, window=20)
    expected = np.concatenate([oracle.step(*chunk) for chunk in chunks_of(tokens, spoken)])
    got = speak(GraphFlow(graphs, FEW_STEPS, window=20), VOICE, 9, tokens, spoken)
    np.testing.assert_allclose(got, expected, atol=2e-5)
    wider = speak(GraphFlow(graphs, FEW_STEPS, window=200), VOICE, 9, tokens, spoken)
    assert np.abs(wider[-8:] - got[-8:]).max() > 1e-3, "the window makes no difference"


def test_an_hour_into_a_turn(graphs):
    """The prompt is 180,000 frames away then, beyond any table of positions."""
    flow, hour = GraphFlow(graphs, FEW_STEPS, window=20), 25 * 3600
    oracle = Untrimmed(graphs, VOICE, 9, window=20)
    *chunks, last = chunks_of(make_tokens(22, 30), [12, 12])
    handle = flow.open(VOICE, 9)
    for chunk in chunks:
        flow.step([FlowWork(handle, *chunk)])
        oracle.step(*chunk)
    session = flow.snapshot(handle)
    session.memory.token.written += hour
    session.memory.mel.written += 2 * hour
    flow.restore(handle, session)
    oracle.shift = hour
    got = flow.step([FlowWork(handle, *last)])[0]
    np.testing.assert_allclose(got, oracle.step(*last), atol=2e-5)


def test_memory_is_constant(graphs):
    """Two minutes; what the process holds does not grow after the first half."""
    flow = GraphFlow(graphs, FEW_STEPS, window=20)
    for graph in (graphs.encoder_stream, graphs.estimator_stream):
        graph.calls = Newest()
    handle, tokens = flow.open(VOICE, 1), make_tokens(23, 50 + AHEAD)
    held = []
    tracemalloc.start()
    for _ in range(2):
        for _ in range(30):
            flow.step([FlowWork(handle, tokens, False)])
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[1] - held[0] < 20_000
    [last] = graphs.estimator_stream.calls
    assert last["kv"].shape[-2] == 2 * len(VOICE.tokens) + 20
    [last] = graphs.encoder_stream.calls
    assert last["distance_mel"].max() == 2 * (len(VOICE.tokens) + 50 * 59)


class Newest(list):
    def append(self, value):
        self[:] = [value]


# Against itself in other orders.


@pytest.mark.parametrize("spoken", [[12, 15, 25], [1, 1, 1], [25, 25], []])
def test_noise_goes_by_frame(graphs, flow, spoken):
    """Each target frame starts from the noise of its index, however cut, streamed or not."""
    tokens = make_tokens(31, 60)
    expected = noise.normal(77, noise.FLOW, 0, 120, BINS)
    prompt_frames = 2 * len(VOICE.tokens)
    speak(flow, VOICE, 77, tokens, spoken)
    starts = [c["x"][0] for c in graphs.estimator_stream.calls if c["t"] == 0]
    np.testing.assert_array_equal(np.concatenate(starts)[prompt_frames:], expected)
    flow.offline([(tokens, VOICE, 77)])
    start = graphs.estimator_offline.calls[0]["x"][0]
    np.testing.assert_array_equal(start[prompt_frames:], expected)


def test_interleaved_equals_sequential(flow):
    plans = [(VOICE, 1, make_tokens(41, 40), [12, 15]), (OTHER, 2, make_tokens(42, 37), [12, 15])]
    expected = [speak(flow, *plan) for plan in plans]
    handles = [flow.open(voice, seed) for voice, seed, *_ in plans]
    mels: list[list[np.ndarray]] = [[], []]
    for parts in zip(*(chunks_of(tokens, spoken) for *_, tokens, spoken in plans), strict=True):
        for mel, handle, part in zip(mels, handles, parts, strict=True):
            mel += flow.step([FlowWork(handle, *part)])
    for mel, alone in zip(mels, expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(mel), alone)


def test_batch_equals_single(graphs, flow):
    """Two voices, three lengths of history, two lengths of chunk, one of them final."""
    plans = [
        (VOICE, 1, make_tokens(51, 36), [12, 12]),
        (OTHER, 2, make_tokens(52, 24), [12]),
        (VOICE, 3, make_tokens(53, 12), []),
        (OTHER, 4, make_tokens(54, 20), [9]),
    ]
    expected = [speak(flow, *plan) for plan in plans]
    handles = [flow.open(voice, seed) for voice, seed, *_ in plans]
    queues = [chunks_of(tokens, spoken) for *_, tokens, spoken in plans]
    mels: list[list[np.ndarray]] = [[] for _ in plans]
    for left in (3, 2, 1):
        ready = [i for i, queue in enumerate(queues) if len(queue) == left]
        work = [FlowWork(handles[i], *queues[i].pop(0)) for i in ready]
        for i, mel in zip(ready, flow.step(work), strict=True):
            mels[i].append(mel)
    for mel, alone in zip(mels, expected, strict=True):
        np.testing.assert_allclose(np.concatenate(mel), alone, atol=2e-5)
    rows = [len(call["x"]) for call in graphs.estimator_stream.calls]
    assert max(rows) == 2 * 3, "chunks of equal length did not share a run"


def test_offline_batch_equals_single(flow):
    batch = [
        (make_tokens(61, 40), VOICE, 1),
        (make_tokens(62, 3), OTHER, 2),
        (make_tokens(63, 0), VOICE, 3),
        (make_tokens(64, 28), make_voice(4, missing=2), 4),
    ]
    together = flow.offline(batch)
    assert [len(mel) for mel in together] == [80, 6, 0, 56]
    for utterance, mel in zip(batch, together, strict=True):
        np.testing.assert_allclose(mel, flow.offline([utterance])[0], atol=2e-5)
    assert flow.offline([]) == []


def test_snapshot_replays(flow):
    """Into the same session, and into another one of another voice."""
    *before, middle, last = chunks_of(make_tokens(71, 45), [12, 12, 12])
    handle, other = flow.open(VOICE, 5), flow.open(OTHER, 6)
    for chunk in before:
        flow.step([FlowWork(handle, *chunk)])
    saved = flow.snapshot(handle)
    expected = [flow.step([FlowWork(handle, *chunk)])[0] for chunk in (middle, last)]
    for target in (handle, other):
        flow.restore(target, saved)
        for chunk, mel in zip((middle, last), expected, strict=True):
            np.testing.assert_array_equal(flow.step([FlowWork(target, *chunk)])[0], mel)


@pytest.mark.parametrize("missing", [-2, -1, 1, 2])
def test_voice_whose_mel_rounds_otherwise(flow, missing):
    """As if its mel had been cut, or its last frame repeated."""
    odd = make_voice(8, missing=missing)
    fitted = np.concatenate([odd.mel, np.repeat(odd.mel[-1:], 2, axis=0)])[:16]
    even = VoicePrompt(odd.tokens, fitted, odd.embedding, "fitted")
    tokens = make_tokens(81, 6)
    np.testing.assert_array_equal(speak(flow, odd, 1, tokens, []), speak(flow, even, 1, tokens, []))


@pytest.mark.parametrize("rest", [0, 1, AHEAD, AHEAD + 1])
def test_final_chunk_of_any_length(flow, rest):
    tokens = make_tokens(91, 12 + AHEAD + rest)
    handle = flow.open(VOICE, 1)
    first = flow.step([FlowWork(handle, tokens[: 12 + AHEAD], False)])[0]
    last = flow.step([FlowWork(handle, tokens[12 : 12 + rest], True)])[0]
    assert (first.shape, last.shape) == ((24, BINS), (2 * rest, BINS))
    assert np.isfinite(last).all()


@pytest.mark.parametrize("n", [0, 1, AHEAD - 1, AHEAD])
def test_utterance_shorter_than_the_look_ahead(flow, n):
    mel = speak(flow, VOICE, 1, make_tokens(92, n), [])
    assert mel.shape == (2 * n, BINS)
    assert np.isfinite(mel).all()


def test_a_seed_of_numpy_is_that_number():
    for stream in (noise.FLOW, noise.SOURCE):
        np.testing.assert_array_equal(
            noise.normal(np.int32(5), stream, 0, 2, 8), noise.normal(5, stream, 0, 2, 8)
        )
