"""CAM++ on kernels computes what the torch module computes, whatever was in its buffers before.

With TRITON_INTERPRET=1 and triton installed it runs on any machine, slowly.
"""

import os

import numpy as np
import pytest
import torch

from duologue.engines.torch import TorchGraph
from duologue.errors import EngineError
from duologue.token2wav import campplus
from duologue.token2wav.config import TINY
from duologue.token2wav.ports import SIGNATURES

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# On a GPU sums of float32 products come in another order.
EXACT = 1e-4 if INTERPRETED else 1e-3
HALF = 1e-2
# The interpreter takes its time for each program, however large.
COARSE = {"HEAD_ROWS": 4096, "COLUMNS": 128, "DEPTH": 512} if INTERPRETED else {}
SIGNATURE = SIGNATURES["campplus"](TINY)


def make_model() -> campplus.CAMPPlus:
    """Every parameter has a say; norms of either sign, as trained ones are."""
    torch.manual_seed(3)
    model = campplus.CAMPPlus().eval()
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif name.endswith(("running_mean", "bias")):
            tensor.normal_(std=0.2)
        elif tensor.dim() == 1:
            tensor.uniform_(0.5, 1.5).mul_(torch.randn_like(tensor).sign())
        elif tensor.dim() > 1:
            torch.nn.init.kaiming_normal_(tensor)
        # Else each gate is open or shut, whatever its context.
        if name.endswith("cam_layer.linear2.weight"):
            tensor.mul_(0.03)
    return model


def make_fbank(frames: int, rows: int = 1, seed: int = 0) -> np.ndarray:
    """Noise whose spectrum moves with time, so that each segment counts."""
    rng = np.random.default_rng((frames, seed))
    drift = rng.normal(size=(rows, frames // 10 + 1, 80)).cumsum(1).repeat(10, 1)[:, :frames]
    fbank = rng.normal(size=(rows, frames, 80)) + drift
    return (fbank - fbank.mean(1, keepdims=True)).astype(np.float32)


def make_engine(model: campplus.CAMPPlus, dtype: torch.dtype = torch.float32, **options):
    from duologue.engines.cudagraph.campplus import CudaGraphCampplus

    return CudaGraphCampplus(model, *SIGNATURE, dtype=dtype, device=DEVICE, **options)


def embeddings(graph, fbank: np.ndarray) -> np.ndarray:
    return graph.run({"fbank": fbank})["embedding"]


def error(given: np.ndarray, expected: np.ndarray) -> float:
    """Root of the mean square, relative."""
    return float(np.linalg.norm(given - expected) / np.linalg.norm(expected))


@pytest.fixture(scope="module", autouse=True)
def gpu():
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip("needs an NVIDIA GPU, or TRITON_INTERPRET=1")
    pytest.importorskip("triton", reason="needs triton")
    torch.set_num_threads(1)


@pytest.fixture
def coarse(monkeypatch):
    from duologue.engines.cudagraph import campplus as on_kernels

    for name, value in COARSE.items():
        monkeypatch.setattr(on_kernels, name, value)


@pytest.fixture(scope="module")
def reference():
    return TorchGraph(make_model(), *SIGNATURE)


@pytest.fixture(scope="module")
def engine():
    return make_engine(make_model())


@pytest.fixture
def shallow(monkeypatch):
    """A model of few layers, and its reference."""
    monkeypatch.setattr(campplus, "BLOCKS", ((4, 1), (4, 2), (4, 2)))
    model = make_model()
    return model, TorchGraph(model, *SIGNATURE)


# All but the last share a bucket, so a clip must not see what a longer one has left in it.
@pytest.mark.parametrize("frames", [101, 50, 99, 100, 498])
@pytest.mark.usefixtures("coarse")
def test_clips_of_any_length_equal_the_reference(reference, engine, frames):
    fbank = make_fbank(frames)
    assert error(embeddings(engine, fbank), embeddings(reference, fbank)) < EXACT


@pytest.mark.timeout(500)
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("frames", [99, 498])
def test_half_precision_equals_the_reference(reference, frames):
    fbank = make_fbank(frames)
    given = embeddings(make_engine(make_model(), torch.float16), fbank)
    assert error(given, embeddings(reference, fbank)) < HALF


# 3, 400 and 401 frames: one row more than has no deviation, whole segments, and one row beyond;
# 1001: more tiles than are read at once.
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("frames", [3, 400, 401, 1001])
def test_lengths_at_the_ends_of_segments(shallow, frames):
    model, expected = shallow
    fbank = make_fbank(frames)
    assert error(embeddings(make_engine(model), fbank), embeddings(expected, fbank)) < EXACT


@pytest.mark.usefixtures("coarse")
def test_clips_of_a_batch_do_not_meet(shallow):
    model, expected = shallow
    fbank = make_fbank(230, rows=3)
    assert error(embeddings(make_engine(model), fbank), embeddings(expected, fbank)) < EXACT


@pytest.mark.usefixtures("coarse")
def test_the_buckets_unused_for_longest_go(shallow):
    model, expected = shallow
    engine = make_engine(model, shapes=1)
    for frames in (60, 300, 60):
        fbank = make_fbank(frames)
        assert error(embeddings(engine, fbank), embeddings(expected, fbank)) < EXACT


@pytest.mark.parametrize(
    ("frames", "segments"), [(3, 1), (200, 1), (201, 2), (500, 3), (900, 6), (1400, 8), (3000, 16)]
)
def test_buckets_are_at_most_half_empty(frames, segments):
    from duologue.engines.cudagraph.campplus import segments_of

    assert segments_of(frames) == segments


def test_a_clip_too_short_for_a_deviation_is_refused(engine):
    with pytest.raises(EngineError, match="at least 3 frames, got 2"):
        embeddings(engine, make_fbank(2))
