"""Streamed sound is the sound of the whole utterance, however it is cut, batched or interleaved."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.engines.graph import Port
from duologue.engines.torch import TorchGraph
from duologue.errors import CapacityError, ConfigError, EngineError, InputError
from duologue.token2wav import ports
from duologue.token2wav.config import TINY, HiftConfig
from duologue.token2wav.hift import F0Graph, HiFT, HiftGraph
from duologue.token2wav.source import SourceWeights
from duologue.token2wav.step import VocoderWork
from duologue.token2wav.vocoder import Vocoder

# As deep as the public model, but thin.
CONFIG = TINY.model_copy(update={"hift": HiftConfig(base_channels=16, f0_channels=16)})
SAMPLES = CONFIG.hift.samples_per_frame
EXACT = 5e-6
"""Most that streamed and whole differ by; 3 frames less of context give 6e-6, 4 frames 7e-5."""
BATCHED = 1e-4
"""Most that batched and single differ by: f0 is rounded otherwise, and the phase sums it up."""


class Counting:
    """Counts the runs of a graph, and fails when told to."""

    def __init__(self, graph):
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self._graph, self.batches, self.fails = graph, [], False

    def run(self, arrays):
        if self.fails:
            raise EngineError("out of memory")
        self.batches.append(len(arrays["mel"]))
        return self._graph.run(arrays)


class F0FromMel:
    """Takes the first mel bin for f0."""

    inputs = outputs = (Port("unused", "float32", (1,)),)

    def run(self, arrays):
        return {"f0_hz": arrays["mel"][..., 0]}


class SourceAsSound:
    """Lets the source through."""

    inputs = outputs = (Port("unused", "float32", (1,)),)

    def run(self, arrays):
        return {"wav": arrays["source"]}


@pytest.fixture(scope="module")
def hift():
    """Random, loud enough that the receptive field shows, voiced for 60 % of frames."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hift = HiFT(CONFIG.hift).eval()
        for name, parameter in hift.named_parameters():
            if name.endswith("alpha"):
                parameter.data.uniform_(0.5, 1.5)
            elif "resblocks" in name and name.endswith("weight"):
                parameter.data.mul_(1.5)
    hift.f0_predictor.classifier.weight.data.mul_(1000)
    hift.f0_predictor.classifier.bias.data.fill_(-100)
    return hift


@pytest.fixture(scope="module")
def graphs(hift):
    return [
        Counting(TorchGraph(module, *signature(CONFIG)))
        for module, signature in ((F0Graph(hift), ports.f0), (HiftGraph(hift), ports.hift))
    ]


@pytest.fixture(scope="module")
def vocoders(hift, graphs):
    return {
        mode: Vocoder(CONFIG.hift, *graphs, hift.source_weights(), capacity=4, mode=mode)
        for mode in ("exact", "early")
    }


@pytest.fixture(scope="module")
def exact(vocoders):
    return vocoders["exact"]


@pytest.fixture(scope="module")
def early(vocoders):
    return vocoders["early"]


def tone(hift=None, **options):
    """A vocoder whose sound is the source: a pure sine of the f0 in mel bin 0."""
    quiet = CONFIG.hift.model_copy(update={"nsf_sigma": 0.0})
    weights = SourceWeights(np.float32([1, 0, 0, 0, 0, 0, 0, 0, 0]), 0.0)
    return Vocoder(quiet, F0FromMel(), hift or SourceAsSound(), weights, capacity=2, **options)


def random_mel(frames, seed=0):
    return np.random.default_rng(seed).normal(-4, 2, (frames, 80)).astype(np.float32)


def pieces(mel, sizes):
    """(mel, final) of each chunk."""
    edges = np.cumsum([0, *sizes])
    return [
        (mel[low:high], place == len(sizes) - 1)
        for place, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True))
    ]


def stream(vocoder, mel, sizes, seed):
    """Samples of each chunk."""
    handle = vocoder.open(seed)
    made = [
        vocoder.step([VocoderWork(handle, piece, final)])[0] for piece, final in pieces(mel, sizes)
    ]
    vocoder.close(handle)
    return made


def snr_db(made, expected):
    return 10 * np.log10(np.square(expected).sum() / np.square(made - expected).sum())


def test_the_random_model_is_a_hard_one(hift, exact):
    mel = random_mel(80)
    with torch.inference_mode():
        voiced = hift.f0_predictor(torch.from_numpy(mel)[None]) > 10
    assert 0.2 < voiced.float().mean() < 0.98
    assert 0.05 < exact.one_shot(mel, 1).std() < 0.3


@given(st.lists(st.integers(0, 45), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
@settings(max_examples=12, deadline=None)
def test_streamed_is_whole(exact, sizes, seed):
    mel = random_mel(sum(sizes), seed=seed % 1000)
    made = stream(exact, mel, sizes, seed)
    whole = exact.one_shot(mel, seed)
    assert len(whole) == SAMPLES * len(mel)
    np.testing.assert_allclose(np.concatenate(made), whole, rtol=0, atol=EXACT)
    # 15 frames of source, which looks 5 ahead for its f0; nothing is kept longer.
    known = np.cumsum(sizes)[:-1]
    given_out = np.cumsum([len(samples) for samples in made])[:-1]
    np.testing.assert_array_equal(given_out, SAMPLES * np.maximum(0, known - exact.hold_back))


@pytest.mark.parametrize("mode", ["exact", "early"])
@pytest.mark.parametrize("sizes", [[0], [1], [0, 1, 0], [3, 4], [8, 1], [9, 0], [20, 0], [5] * 5])
def test_short_utterances(vocoders, mode, sizes):
    mel = random_mel(sum(sizes))
    made = np.concatenate(stream(vocoders[mode], mel, sizes, 3))
    assert made.dtype == np.float32
    if mode == "exact":
        np.testing.assert_allclose(made, vocoders[mode].one_shot(mel, 3), rtol=0, atol=EXACT)
    assert len(made) == SAMPLES * len(mel)


def test_early_mode_is_near(exact, early):
    """Measured with these weights: 52 dB in chunks of 1 s, 46 dB in chunks of 0.2 s."""
    mel = random_mel(120)
    whole = exact.one_shot(mel, 5)
    for sizes, least_db in ([50, 50, 20], 48), ([10] * 12, 42):
        made = stream(early, mel, sizes, 5)
        assert sum(map(len, made[:1])) == SAMPLES * (sizes[0] - 8)
        assert snr_db(np.concatenate(made), whole) > least_db


def test_early_mode_is_exact_when_it_waits(hift, graphs, exact):
    """Holding back as much as exact mode, only the cross-fade's older half is from before."""
    patient = Vocoder(
        CONFIG.hift, *graphs, hift.source_weights(), capacity=1, mode="early", early_frames=20
    )
    mel = random_mel(90)
    made = np.concatenate(stream(patient, mel, [40, 10, 40], 2))
    np.testing.assert_allclose(made, exact.one_shot(mel, 2), rtol=0, atol=EXACT)


def test_early_mode_fades_from_one_step_to_the_next():
    """Where step k makes a level of k, the levels go over in 20 ms, and never beyond either."""

    class Level(SourceAsSound):
        def __init__(self):
            self.level = -1.0

        def run(self, arrays):
            self.level += 1.0
            return {"wav": np.full_like(arrays["source"], self.level)}

    vocoder = tone(Level(), mode="early")
    sound = np.concatenate(stream(vocoder, random_mel(60), [15, 15, 15, 15], 0))
    steps = np.diff(sound)
    assert sound[0] == 0 and sound[-1] == 3
    assert 0 <= steps.min() <= steps.max() < 2 / SAMPLES
    assert np.count_nonzero(steps) <= 3 * (SAMPLES + 1)


@pytest.mark.parametrize("mode", ["exact", "early"])
def test_a_tone_has_no_seams(mode):
    """Public reports: FunAudioLLM/CosyVoice issues 895 and 1386 (breaks at each chunk), 1919 (noise
    in the last 40 ms). A sine in 13 chunks is that sine: nothing jumps at a boundary, and the end
    is as clean as the rest.
    """
    hz, sizes = 217.3, [25, 1, 50, 7, 7, 7, 30, 0, 50, 50, 2, 3, 40]
    mel = np.full((sum(sizes), 80), hz, np.float32)
    made = stream(tone(mode=mode), mel, sizes, 0)
    sound = np.concatenate(made).astype(np.float64)
    assert len(sound) == SAMPLES * len(mel)
    # The phase is that of the frame's end at its centre, and stands still in the outer halves.
    cycles = (np.arange(len(sound)) + 0.5 + SAMPLES / 2) * np.float32(hz).astype(float) / 24_000
    ideal = np.tanh(0.1 * np.sin(2 * np.pi * cycles))
    inner = slice(SAMPLES // 2, -SAMPLES // 2)
    np.testing.assert_allclose(sound[inner], ideal[inner], atol=1e-6)
    edges = np.cumsum([len(samples) for samples in made])[:-1]
    edges = edges[(edges > 0) & (edges < len(sound))]
    jumps = np.abs(np.diff(sound))
    at_edges = np.zeros(len(jumps), bool)
    at_edges[edges - 1] = True
    assert len(set(edges)) >= 9
    assert jumps[at_edges].max() <= jumps[~at_edges].max() * (1 + 1e-6)


def test_a_phase_that_starts_again_would_jump():
    """The check above can fail: chunks made one by one do jump."""
    mel = np.full((100, 80), 217.3, np.float32)
    sound = np.concatenate([tone().one_shot(mel[:25], 0), tone().one_shot(mel[25:], 0)])
    jumps = np.abs(np.diff(sound))
    assert jumps[25 * SAMPLES - 1] > 2 * np.delete(jumps, 25 * SAMPLES - 1).max()


@pytest.mark.parametrize("mode", ["exact", "early"])
def test_boundaries_of_random_sound_are_like_the_rest(vocoders, mode):
    """No boundary jumps more than the sound does elsewhere, against its local level."""
    made = stream(vocoders[mode], random_mel(160), [20] * 8, 9)
    sound = np.concatenate(made)
    level = np.sqrt(np.convolve(np.square(sound), np.full(SAMPLES, 1 / SAMPLES), "same"))
    jumps = np.abs(np.diff(sound)) / level[1:]
    edges = np.unique(np.cumsum([len(samples) for samples in made]))
    edges = edges[(edges > 0) & (edges < len(sound))] - 1
    assert jumps[edges].max() <= np.delete(jumps, edges).max()


@pytest.mark.parametrize("mode", ["exact", "early"])
def test_batched_is_single_and_interleaved_is_sequential(vocoders, graphs, mode):
    vocoder, hift_graph = vocoders[mode], graphs[1]
    mels = [random_mel(90, seed) for seed in range(3)]
    sizes = [[30, 30, 30], [30, 30, 30], [30, 7, 53]]
    alone = [stream(vocoder, mel, size, 7) for mel, size in zip(mels, sizes, strict=True)]
    handles = [vocoder.open(7) for _ in mels]
    hift_graph.batches.clear()
    for place, chunks in enumerate(zip(*map(pieces, mels, sizes), strict=True)):
        work = [
            VocoderWork(handle, mel, final)
            for handle, (mel, final) in zip(handles, chunks, strict=True)
        ]
        made = vocoder.step(work[::-1])[::-1]
        for samples, single in zip(made, alone, strict=True):
            np.testing.assert_allclose(samples, single[place], rtol=0, atol=BATCHED)
    # Equal windows shared a run; the third session had others from its second chunk on.
    assert hift_graph.batches[0] == 3
    assert sorted(hift_graph.batches[1:]) == [1, 1, 2, 2]
    for handle in handles:
        vocoder.close(handle)


def test_offline_pads_nothing(exact, graphs):
    mels = [random_mel(frames, frames) for frames in (12, 30, 12, 0)]
    graphs[1].batches.clear()
    made = exact.offline(mels, [1, 2, 3, 4])
    assert sorted(graphs[1].batches) == [1, 2]
    for samples, mel, seed in zip(made, mels, [1, 2, 3, 4], strict=True):
        np.testing.assert_allclose(samples, exact.one_shot(mel, seed), rtol=0, atol=BATCHED)
    assert np.abs(exact.one_shot(mels[0], 1) - exact.one_shot(mels[0], 5)).max() > 1e-3


@pytest.mark.parametrize("mode", ["exact", "early"])
@pytest.mark.parametrize("chunk", [1, 13, 50])
def test_state_is_constant(mode, chunk):
    vocoder = tone(mode=mode)
    handle = vocoder.open(0)
    mel = np.full((chunk, 80), 100, np.float32)
    sizes = []
    for _ in range(max(20, 150 // chunk)):
        vocoder.step([VocoderWork(handle, mel, False)])
        state = vocoder.snapshot(handle)
        assert state.mel.base is None and state.tail.base is None
        sizes.append(state.nbytes)
    assert len(set(sizes[len(sizes) // 2 :])) == 1
    # What is held back and what is looked back on (15 frames of source, 5 more for its f0).
    assert len(state.mel) == vocoder.hold_back + 20
    assert len(state.tail) == (SAMPLES if mode == "early" else 0)


@pytest.mark.parametrize("mode", ["exact", "early"])
def test_snapshot_holds_everything(vocoders, mode):
    vocoder = vocoders[mode]
    mel = random_mel(90)
    first, second, third = pieces(mel, [40, 3, 47])
    handle = vocoder.open(8)
    vocoder.step([VocoderWork(handle, *first)])
    saved = vocoder.snapshot(handle)
    straight = [vocoder.step([VocoderWork(handle, *chunk)])[0] for chunk in (second, third)]
    vocoder.close(handle)
    other = vocoder.open(99)
    vocoder.restore(other, saved)
    again = [vocoder.step([VocoderWork(other, *chunk)])[0] for chunk in (second, third)]
    vocoder.close(other)
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate(straight))


def test_a_closed_session_is_silent(exact):
    stale = exact.open(1)
    exact.close(stale)
    exact.close(stale)
    tenant = exact.open(2)
    assert tenant.slot == stale.slot
    exact.close(stale)
    mel = random_mel(30)
    silent, spoken = exact.step([VocoderWork(stale, mel, True), VocoderWork(tenant, mel, True)])
    assert len(silent) == 0
    np.testing.assert_allclose(spoken, exact.one_shot(mel, 2), rtol=0, atol=EXACT)
    for use in (exact.snapshot, lambda handle: exact.restore(handle, exact.snapshot(tenant))):
        with pytest.raises(InputError, match="is closed"):
            use(stale)
    exact.close(tenant)


def test_closing_during_a_step():
    """The session's samples are dropped, and the slot's next tenant starts afresh."""

    class Closing(SourceAsSound):
        def run(self, arrays):
            vocoder.close(handle)
            tenants.append(vocoder.open(5))
            return super().run(arrays)

    tenants = []
    vocoder = tone(Closing())
    handle = vocoder.open(4)
    [samples] = vocoder.step([VocoderWork(handle, random_mel(30), False)])
    assert len(samples) == 0
    assert tenants[0].slot == handle.slot
    assert vocoder.snapshot(tenants[0]).emitted == 0


def test_capacity(hift, graphs):
    vocoder = Vocoder(CONFIG.hift, *graphs, hift.source_weights(), capacity=1)
    handle = vocoder.open(0)
    with pytest.raises(CapacityError, match="all 1 sessions are taken"):
        vocoder.open(0)
    vocoder.close(handle)
    vocoder.open(0)


def test_a_failure_advances_nobody(exact, graphs):
    mel = random_mel(60)
    handle, other = exact.open(1), exact.open(2)
    first, second = pieces(mel, [30, 30])
    begun = [exact.step([VocoderWork(handle, *first)])[0]]
    wrong = VocoderWork(other, mel[:, :79], False)
    with pytest.raises(InputError, match=r"found shape \[60, 79\], expected \[frames, 80\]"):
        exact.step([VocoderWork(handle, *second), wrong])
    with pytest.raises(InputError, match="two chunks in one step"):
        exact.step([VocoderWork(handle, *second)] * 2)
    graphs[1].fails = True
    with pytest.raises(EngineError):
        exact.step([VocoderWork(handle, *second)])
    graphs[1].fails = False
    begun += exact.step([VocoderWork(handle, *second)])
    np.testing.assert_allclose(np.concatenate(begun), exact.one_shot(mel, 1), rtol=0, atol=EXACT)
    exact.close(handle)
    exact.close(other)


def test_bad_settings():
    with pytest.raises(ConfigError, match="early_frames: found 0"):
        tone(mode="early", early_frames=0)
    with pytest.raises(InputError, match="seed"):
        tone().open(-1)
