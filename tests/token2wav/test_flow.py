"""The flow's modules against the public reference, and against themselves in other batches."""

import inspect

import numpy as np
import pytest
import torch

from duologue.token2wav import ports
from duologue.token2wav.config import FULL, TINY, Token2wavConfig
from duologue.token2wav.flow import (
    EncoderOffline,
    EncoderStream,
    EstimatorOffline,
    EstimatorStream,
    Flow,
)
from duologue.token2wav.step import VoicePrompt
from duologue.token2wav.weights import random_weights
from tests.token2wav import reference
from tests.token2wav.reference_stream import ReferenceStream, offline

AHEAD, STEPS = TINY.look_ahead, 3
FEW_STEPS = TINY.model_copy(
    update={
        "flow": TINY.flow.model_copy(
            update={"decoder": TINY.flow.decoder.model_copy(update={"n_timesteps": STEPS})}
        )
    }
)
MODULES = {
    "encoder_stream": EncoderStream,
    "encoder_offline": EncoderOffline,
    "estimator_stream": EstimatorStream,
    "estimator_offline": EstimatorOffline,
}


class Draw:
    """Random inputs."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.tensor(self.rng.standard_normal(shape), dtype=torch.float32)

    def tokens(self, n: int) -> np.ndarray:
        return self.rng.integers(0, TINY.flow.vocab_size, n).astype(np.int32)

    def voice(self, tokens: int, missing: int = 0) -> VoicePrompt:
        mel = 2 * self.rng.standard_normal((2 * tokens - missing, 80)) - 4
        return VoicePrompt(
            self.tokens(tokens),
            mel.astype(np.float32),
            self.rng.standard_normal(192).astype(np.float32),
            "",
        )

    def inputs(self, name: str, **sizes: int) -> dict[str, torch.Tensor]:
        """Whatever a graph takes; masks are all ones, distances real, normal otherwise."""
        made = {}
        for port in ports.SIGNATURES[name](TINY).inputs:
            shape = port.size(sizes)
            if port.name == "tokens":
                made[port.name] = torch.tensor(self.rng.integers(0, 6561, shape))
            elif port.name.startswith("distance"):
                made[port.name] = torch.arange(shape[1], 0.0, -1).expand(shape).clone()
            elif "mask" in port.name or port.name == "valid":
                made[port.name] = torch.ones(shape)
            elif port.name == "t":
                made[port.name] = torch.tensor([0.3])
            else:
                made[port.name] = self.normal(*shape)
        return made


@pytest.fixture
def draw() -> Draw:
    return Draw(7)


def twins(config: Token2wavConfig):
    """The reference and ours with its weights."""
    public = reference.build_flow(config.flow, 3)
    flow = Flow(config.flow).eval().requires_grad_(False)
    flow.load_state_dict(public.state_dict(), strict=True)
    return public, flow


@pytest.fixture(scope="module")
def both():
    return twins(FEW_STEPS)


@pytest.fixture(scope="module")
def flow() -> Flow:
    return random_weights(FEW_STEPS, 3).flow


def run(flow: Flow, name: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        outputs = MODULES[name](flow)(**inputs)
    return dict(zip((p.name for p in ports.SIGNATURES[name](TINY).outputs), outputs, strict=True))


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


def public_offline(public, voice: VoicePrompt, mel: np.ndarray, tokens: np.ndarray, steps: int):
    """The reference's mel [frames, 80]; its prompt mel has to be two frames a token."""
    size = torch.tensor([0])
    prompt, spoken = torch.tensor(voice.tokens)[None], torch.tensor(tokens)[None]
    spk = torch.tensor(voice.embedding)[None]
    lengths = size + len(tokens), size + len(voice.tokens)
    return public.inference(
        spoken, lengths[0], prompt, lengths[1], torch.tensor(mel)[None], size + len(mel), spk, steps
    )[0].T


def public_stream(public, voice: VoicePrompt, mel: np.ndarray) -> reference.ReferenceStream:
    arrays = (torch.tensor(a)[None] for a in (voice.tokens, mel, voice.embedding))
    return reference.ReferenceStream(public, *arrays, STEPS)


def noise(public) -> torch.Tensor:
    return public.decoder.rand_noise[0].T


# Against the public reference.


def check_modules(public, flow: Flow, draw: Draw, frames: int) -> None:
    ids = torch.tensor(draw.tokens(frames // 2))[None].long()
    with torch.inference_mode():
        hidden, _ = public.encoder(public.input_embedding(ids), torch.tensor([ids.shape[1]]))
        (mu,) = EncoderOffline(flow)(ids, torch.ones(ids.shape))
    assert gap(mu, public.encoder_proj(hidden)) < 1e-5
    x, mu, cond = (draw.normal(2, frames, 80) for _ in range(3))
    spk, time = draw.normal(2, 80), torch.tensor([0.3])
    with torch.inference_mode():
        theirs = public.decoder.estimator(
            x.mT, torch.ones(2, 1, frames), mu.mT, time.repeat(2), spk, cond.mT
        )
        (ours,) = EstimatorOffline(flow)(x, mu, spk, cond, time, torch.ones(2, frames))
    assert float(theirs.std()) > 0.1
    assert gap(ours, theirs.mT) < 1e-5


@reference.available
def test_modules_equal_the_reference(both, draw):
    check_modules(*both, draw, 200)


@reference.available
@pytest.mark.parametrize("missing", [-2, -1, 0, 1, 2])
def test_offline_equals_the_reference(both, draw, missing):
    """Also with a prompt whose mel is longer or shorter than its tokens."""
    public, flow = both
    voice, tokens = draw.voice(11, missing), draw.tokens(20)
    padded = np.pad(voice.mel, ((0, max(missing, 0)), (0, 0)), mode="edge")[:22]
    theirs = public_offline(public, voice, padded, tokens, STEPS)
    [ours] = offline(flow, [voice], [tokens], noise(public)[None])
    assert len(ours) == 40
    assert gap(ours, theirs) < 1e-4


@reference.available
@pytest.mark.parametrize("rest", [1, 3, 4, 13])
def test_stream_equals_the_reference(both, draw, rest):
    """Trimming begins behind the second chunk, and the last chunk has any length."""
    public, flow = both
    voice, tokens = draw.voice(20), draw.tokens(113)
    theirs = public_stream(public, voice, voice.mel)
    ours = ReferenceStream(flow, voice, noise(public))
    for start in range(0, 100, 25):
        chunk = tokens[start : start + 25 + AHEAD]
        assert gap(ours.step(chunk, False), theirs.step(chunk, False)) < 1e-4
    chunk = tokens[100 : 100 + rest]
    assert gap(ours.step(chunk, True), theirs.step(chunk, True)) < 1e-4


@reference.available
def test_stream_of_a_prompt_that_differs_from_its_tokens(both, draw):
    public, flow = both
    short, tokens = draw.voice(12, 2), draw.tokens(28)
    mel = np.pad(short.mel, ((0, 2), (0, 0)), mode="edge")
    theirs = public_stream(public, short, mel)
    ours = ReferenceStream(flow, short, noise(public))
    assert gap(ours.step(tokens, False), theirs.step(tokens, False)) < 1e-4


@reference.available
def test_positions_far_beyond_the_table(both, draw):
    """The reference fails behind 5000 mel frames, its table's end, unless that is made longer."""
    public, flow = both
    inputs = draw.inputs("encoder_stream", batch=1, tokens=5, cached_tokens=2600, cached=5200)
    kv = torch.cat(
        [inputs["kv_token"][0].repeat(1, 1, 2, 1)[:, None], inputs["kv_mel"][0][:, None]]
    )
    convs = torch.cat([inputs["pre_cache"], inputs["up_cache"]], 2)
    embedded = public.input_embedding(inputs["tokens"])
    with torch.inference_mode():
        with pytest.raises(RuntimeError):
            public.encoder.forward_chunk(embedded, False, convs, kv)
        positions = public.encoder.embed.pos_enc
        try:
            positions.extend_pe(torch.zeros(1, 6000))
            hidden, _, _ = public.encoder.forward_chunk(embedded, False, convs, kv)
        finally:
            positions.pe = None
            positions.extend_pe(torch.zeros(1, 5000))
        theirs = public.encoder_proj(hidden)
    assert gap(run(flow, "encoder_stream", inputs)["mu"], theirs) < 1e-4


@reference.available
@pytest.mark.slow
def test_full_size(draw):
    public, flow = twins(FULL)
    assert len(public.state_dict()) == 605
    check_modules(public, flow, draw, 60)
    voice, tokens = draw.voice(5), draw.tokens(9)
    [ours] = offline(flow, [voice], [tokens], noise(public)[None])
    assert gap(ours, public_offline(public, voice, voice.mel, tokens, 10)) < 1e-4


# Padding, caches and positions.


def test_offline_batch_equals_single(flow, draw):
    voices = [draw.voice(n, missing) for n, missing in ((8, 1), (13, 0), (5, -1))]
    tokens = [draw.tokens(n) for n in (31, 2, 17)]
    start = draw.normal(1, 90, 80)
    batch = offline(flow, voices, tokens, start)
    for voice, spoken, mel in zip(voices, tokens, batch, strict=True):
        assert gap(mel, offline(flow, [voice], [spoken], start)[0]) < 1e-4


def test_interleaved_streams_equal_sequential(flow, draw):
    voices, tokens = (draw.voice(6), draw.voice(9)), draw.tokens(30)
    chunks = [(tokens[:13], False), (tokens[10:23], False), (tokens[20:], True)]
    start, alone = draw.normal(200, 80), []
    for voice in voices:
        stream = ReferenceStream(flow, voice, start)
        alone.append([stream.step(*chunk) for chunk in chunks])
    streams = [ReferenceStream(flow, voice, start) for voice in voices]
    for at, chunk in enumerate(chunks):
        for own, stream in zip(alone, streams, strict=True):
            assert gap(own[at], stream.step(*chunk)) == 0


def padded(value: torch.Tensor, axis: int, amount: int) -> torch.Tensor:
    """With garbage behind the real entries of an axis."""
    shape = list(value.shape)
    shape[axis] = amount
    return torch.cat([value, torch.full(shape, 3, dtype=value.dtype)], axis)


@pytest.mark.parametrize("final", [False, True])
def test_encoder_pads_neutrally(flow, draw, final):
    """A short row beside a long one, its cache in another order and with gaps."""
    short = draw.inputs("encoder_stream", batch=1, tokens=4, cached_tokens=6, cached=9)
    if final:
        short["valid"][:, 4:] = 0
    single = run(flow, "encoder_stream", short)
    row = dict(short)
    for name in ("tokens", "valid"):
        row[name] = padded(short[name], 1, 5)
    row["valid"][:, 4 + AHEAD :] = 0
    row["mask"] = torch.cat([short["mask"], torch.zeros(1, 5)], 1)
    for rate, length in (("token", 6), ("mel", 9)):
        order = torch.tensor(draw.rng.permutation(length + 2))
        row[f"kv_{rate}"] = padded(short[f"kv_{rate}"], 3, 2)[..., order, :]
        row[f"distance_{rate}"] = padded(short[f"distance_{rate}"], 1, 2)[:, order]
        mask = torch.cat([short[f"mask_{rate}"], torch.zeros(1, 2)], 1)
        row[f"mask_{rate}"] = mask[:, order]
    long = draw.inputs("encoder_stream", batch=1, tokens=9, cached_tokens=8, cached=11)
    batch = run(flow, "encoder_stream", {name: torch.cat([long[name], row[name]]) for name in long})
    for name, value in run(flow, "encoder_stream", long).items():
        assert gap(batch[name][:1], value) < 1e-5, name
    for name in ("new_pre_cache", "new_up_cache"):
        assert gap(batch[name][1:], single[name]) < 1e-5, name
    assert gap(batch["mu"][1:, :8], single["mu"]) < 1e-5
    assert gap(batch["new_kv_token"][1:, :, :, :4], single["new_kv_token"]) < 1e-5
    assert gap(batch["new_kv_mel"][1:, :, :, :8], single["new_kv_mel"]) < 1e-5


def test_estimator_pads_neutrally(flow, draw):
    short = draw.inputs("estimator_stream", rows=1, frames=3, cached=5)
    single = run(flow, "estimator_stream", short)
    row = dict(short)
    for name in ("x", "mu", "cond"):
        row[name] = padded(short[name], 1, 4)
    row["mask"] = torch.cat([short["mask"], torch.zeros(1, 4)], 1)
    order = torch.tensor(draw.rng.permutation(7))
    row["kv"] = padded(short["kv"], 3, 2)[..., order, :]
    row["kv_mask"] = torch.cat([short["kv_mask"], torch.zeros(1, 2)], 1)[:, order]
    long = draw.inputs("estimator_stream", rows=1, frames=7, cached=7)
    rows = {name: torch.cat([long[name], row[name]]) for name in long if name != "t"}
    batch = run(flow, "estimator_stream", rows | {"t": long["t"]})
    for name, value in run(flow, "estimator_stream", long).items():
        assert gap(batch[name][:1], value) < 1e-5, name
    assert gap(batch["velocity"][1:, :3], single["velocity"]) < 1e-5
    assert gap(batch["new_conv_cache"][1:], single["new_conv_cache"]) < 1e-5
    assert gap(batch["new_kv"][1:, :, :, :3], single["new_kv"]) < 1e-5


def test_keys_keep_their_distance_when_others_go(flow, draw):
    """A trimmed cache equals the whole one with the rest masked."""
    whole = draw.inputs("encoder_stream", batch=1, tokens=4, cached_tokens=12, cached=24)
    trimmed = dict(whole)
    for rate, keep in (("token", [0, 1, 2, 9, 10, 11]), ("mel", [0, 3, 20, 21, 22, 23])):
        mask = torch.zeros_like(whole[f"mask_{rate}"])
        mask[:, keep] = 1
        whole[f"mask_{rate}"] = mask
        trimmed[f"kv_{rate}"] = whole[f"kv_{rate}"][..., keep, :]
        trimmed[f"distance_{rate}"] = whole[f"distance_{rate}"][:, keep]
        trimmed[f"mask_{rate}"] = torch.ones(1, len(keep))
    expected = run(flow, "encoder_stream", whole)
    for name, value in run(flow, "encoder_stream", trimmed).items():
        assert gap(value, expected[name]) < 1e-5, name


def test_rows_of_nothing_give_numbers(flow, draw):
    """An engine with fixed sizes runs slots without a session."""
    for name, sizes in (
        ("encoder_stream", {"batch": 1, "tokens": 4, "cached_tokens": 3, "cached": 5}),
        ("estimator_stream", {"rows": 2, "frames": 4, "cached": 3}),
    ):
        inputs = draw.inputs(name, **sizes)
        zeros = {key: value * 0 for key, value in inputs.items()}
        for value in run(flow, name, zeros).values():
            assert torch.isfinite(value).all()


# Ports and precision.

SIZES = [
    ("encoder_stream", {"batch": 2, "tokens": 1, "cached_tokens": 0, "cached": 0}),
    ("encoder_stream", {"batch": 1, "tokens": 5, "cached_tokens": 3, "cached": 7}),
    ("encoder_offline", {"batch": 2, "tokens": 6}),
    ("estimator_stream", {"rows": 2, "frames": 1, "cached": 0}),
    ("estimator_stream", {"rows": 4, "frames": 6, "cached": 3}),
    ("estimator_offline", {"rows": 2, "frames": 6}),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "sizes"), SIZES)
def test_modules_have_their_ports(flow, draw, name, sizes, dtype):
    """Names, order, types and shapes; half precision stays within 1 % of float32."""
    signature = ports.SIGNATURES[name](TINY, dtype)
    forward = inspect.signature(MODULES[name].forward)
    assert list(forward.parameters)[1:] == [port.name for port in signature.inputs]
    inputs = draw.inputs(name, **sizes)
    expected = run(flow, name, inputs)
    twin = Flow(TINY.flow).eval()
    twin.load_state_dict(flow.state_dict())
    twin = twin.to(getattr(torch, dtype))
    lowered = {
        port.name: inputs[port.name].to(getattr(torch, port.dtype)) for port in signature.inputs
    }
    outputs = run(twin, name, lowered)
    for port in signature.outputs:
        value, wanted = outputs[port.name], expected[port.name]
        assert value.shape == port.size(sizes)
        assert value.dtype == getattr(torch, port.dtype)
        assert (value.float() - wanted).square().mean() < 1e-4 * wanted.square().mean()


def test_time_is_embedded_in_float32(flow):
    """In float16, 1000 t would be off by a quarter at late times."""
    twin = Flow(TINY.flow)
    twin.load_state_dict(flow.state_dict())
    twin = twin.half()
    t = torch.tensor([0.8437])
    with torch.inference_mode():
        wanted = flow.estimator.t_embedder(t)
        error = twin.estimator.t_embedder(t) - wanted
    assert error.square().mean() < 1e-6 * wanted.square().mean()
