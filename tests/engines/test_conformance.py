"""What every engine of token2wav promises, on a tiny model."""

import numpy as np
import pytest
import torch

from duologue.engines.onnx import OnnxGraph
from duologue.engines.torch_model import engine_of
from duologue.errors import CapacityError, InputError
from duologue.token2wav.config import TINY
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.solver import FlowGraphs
from duologue.token2wav.step import FlowWork, VocoderWork, VoicePrompt
from duologue.token2wav.stream import Schedule
from tests.token2wav.flows import make_tokens as speech
from tests.token2wav.flows import make_voice as voice

# The first use of an engine exports its graphs.
pytestmark = pytest.mark.timeout(300)

SETTINGS = EngineSettings(sessions=3, window=20, voices=2)
CHUNK = 5 + TINY.look_ahead


@pytest.fixture(scope="module")
def plain(weights) -> Token2wav:
    return engine_of(weights.model, SETTINGS)


@pytest.fixture(scope="module", params=["torch", "onnx", "cudagraph"])
def engine(request, weights, plain) -> tuple[Token2wav, float]:
    """The engine, and how far it may be from torch in float32 (samples)."""
    if request.param == "torch":
        return plain, 1e-5
    if request.param == "onnx":
        graph = request.getfixturevalue("exported")
        model, names = weights.model, ("encoder", "estimator")
        graphs = {
            f"{name}_{kind}": OnnxGraph(graph(f"{name}_{kind}").content)
            for name in names
            for kind in ("stream", "offline")
        }
        affine = model.flow.spk_embed_affine_layer
        speaker = affine.weight.detach().numpy(), affine.bias.detach().numpy()
        flow = FlowGraphs(**graphs, speaker_weight=speaker[0], speaker_bias=speaker[1])
        f0, hift = OnnxGraph(graph("f0").content), OnnxGraph(graph("hift").content)
        source = model.hift.source_weights()
        return Token2wav.over_graphs(model.config, flow, f0, hift, source, SETTINGS), 1e-4
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    from duologue.engines.cudagraph.model import engine_of as on_gpu

    # The phase of the source adds up what half precision does to f0: 6e-3 after 40 tokens.
    return on_gpu(weights.model, SETTINGS), 1e-2


def say(model: Token2wav, tokens: np.ndarray, who: VoicePrompt, seed: int) -> np.ndarray:
    with model.utterance(who, seed, Schedule((5,))) as utterance:
        return np.concatenate([utterance.push(tokens), utterance.finish()])


def near(samples: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert samples.shape == expected.shape
    assert np.abs(samples - expected).max() <= tolerance


@pytest.mark.parametrize("count", [1, 3, 4, 17, 40])
def test_streams_sound_as_on_torch(engine, plain, count):
    model, tolerance = engine
    tokens = speech(count, count)
    near(say(model, tokens, voice(1), 7), say(plain, tokens, voice(1), 7), tolerance)


def test_whole_utterances_sound_as_on_torch(engine, plain):
    model, tolerance = engine
    utterances = [(speech(n, 4 + 3 * n), voice(n % 2), n) for n in range(3)]
    for samples, expected in zip(model.offline(utterances), plain.offline(utterances), strict=True):
        near(samples, expected, tolerance)


def test_sessions_in_one_step_do_not_touch_each_other(engine):
    model, tolerance = engine
    parts = [(speech(n, 2 * CHUNK), voice(n % 2), n) for n in range(3)]
    opened = [(model.flow.open(who, seed), model.vocoder.open(seed)) for _, who, seed in parts]
    heard = [[] for _ in parts]
    for start, end, final in ((0, CHUNK, False), (5, 5 + CHUNK, False), (10, 16, True)):
        work = [
            FlowWork(flow, tokens[start:end], final)
            for (flow, _), (tokens, _, _) in zip(opened, parts, strict=True)
        ]
        mels = model.flow.step(work)
        sounds = model.vocoder.step(
            [
                VocoderWork(vocoder, mel, final)
                for (_, vocoder), mel in zip(opened, mels, strict=True)
            ]
        )
        for ear, samples in zip(heard, sounds, strict=True):
            ear.append(samples)
    for flow, vocoder in opened:
        model.flow.close(flow), model.vocoder.close(vocoder)
    for (tokens, who, seed), parts_heard in zip(parts, heard, strict=True):
        near(np.concatenate(parts_heard), say(model, tokens, who, seed), max(tolerance, 1e-4))


def test_slots_run_out_and_come_back(engine):
    model, _ = engine
    handles = [model.flow.open(voice(1), n) for n in range(3)]
    with pytest.raises(CapacityError):
        model.flow.open(voice(1), 3)
    for handle in handles:
        model.flow.close(handle)
        model.flow.close(handle)
    [mel] = model.flow.step([FlowWork(handles[0], speech(1, CHUNK), False)])
    assert len(mel) == 0
    model.flow.close(model.flow.open(voice(1), 3))


def test_tokens_outside_the_codebook_change_nothing(engine):
    model, tolerance = engine
    tokens = speech(3, 12)
    with model.utterance(voice(1), 5, Schedule((5,))) as utterance:
        first = utterance.push(tokens[:10])
        for bad in (6561, -1):
            with pytest.raises(InputError, match="6560"):
                utterance.push(np.array([bad]))
        samples = np.concatenate([first, utterance.push(tokens[10:]), utterance.finish()])
    near(samples, say(model, tokens, voice(1), 5), tolerance)
