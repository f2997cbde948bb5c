"""HiFT against the public reference, torch's own STFT, and its own receptive field."""

import pytest
import torch

from duologue.token2wav.config import FULL, TINY
from duologue.token2wav.hift import F0Graph, HiFT, HiftGraph, Stft
from duologue.token2wav.receptive_field import receptive_field
from tests.token2wav import reference

SAMPLES = TINY.hift.samples_per_frame


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_mel(batch, frames, seed=3):
    return torch.randn(batch, frames, TINY.hift.mel_bins, generator=generator(seed)) * 2 - 4


def pair(config, seed):
    """The reference and ours with its weights; unvoiced frames too."""
    theirs = reference.build_hift(config, seed)
    f0_hz = theirs.f0_predictor(random_mel(1, 50).transpose(1, 2))
    theirs.f0_predictor.classifier.bias.data -= f0_hz.median()
    ours = HiFT(config).eval()
    ours.load_state_dict(reference.fold_weight_norm(theirs))
    return theirs, ours


@pytest.fixture(scope="module")
def hifts():
    return pair(TINY.hift, 11)


def check_parity(theirs, ours, batch, frames):
    """Bounds: f0 1e-4 of its value, samples 1e-5 of full scale, from the reference's source."""
    mel = random_mel(batch, frames)
    with torch.inference_mode():
        f0_hz = theirs.f0_predictor(mel.transpose(1, 2))
        torch.testing.assert_close(F0Graph(ours)(mel), f0_hz, rtol=1e-4, atol=1e-4)
        wav, source = theirs(mel.transpose(1, 2))
        made = HiftGraph(ours)(mel, source[:, 0])
    assert made.shape == (batch, SAMPLES * frames)
    assert wav.std() > 0.05
    assert 0 < (f0_hz > TINY.hift.voiced_threshold_hz).float().mean() <= 1
    torch.testing.assert_close(made, wav, rtol=0, atol=1e-5)


@reference.available
@pytest.mark.parametrize(("batch", "frames"), [(2, 40), (1, 1), (3, 2)])
def test_parity(hifts, batch, frames):
    check_parity(*hifts, batch, frames)


@pytest.mark.slow
@reference.available
def test_parity_at_full_size():
    theirs, ours = pair(FULL.hift, 12)
    check_parity(theirs, ours, 1, 30)


@reference.available
def test_weights_of_the_source(hifts):
    theirs, ours = hifts
    weights, linear = ours.source_weights(), theirs.m_source.l_linear
    torch.testing.assert_close(torch.from_numpy(weights.harmonics), linear.weight.detach()[0])
    assert weights.bias == pytest.approx(linear.bias.item())


def test_stft_and_inverse_are_torchs():
    stft = Stft(16, 4)
    samples = torch.randn(2, 960, generator=generator(1))
    window = torch.hann_window(16)
    expected = torch.stft(samples, 16, 4, window=window, return_complex=True)
    spectrum = stft.transform(samples)
    torch.testing.assert_close(spectrum, torch.cat([expected.real, expected.imag], 1))
    torch.testing.assert_close(stft.inverse(spectrum), samples, rtol=0, atol=1e-6)
    # Not the spectrum of any signal, and with imaginary parts where a real signal has none.
    free = torch.randn(2, 18, 241, generator=generator(2))
    other = torch.istft(torch.complex(free[:, :9], free[:, 9:]), 16, 4, window=window)
    torch.testing.assert_close(stft.inverse(free), other)


@reference.available
def test_half_precision_keeps_what_needs_32_bits(hifts):
    _, ours = hifts
    half = HiFT(TINY.hift).eval()
    half.load_state_dict(ours.state_dict())
    half.half()
    mel, source = random_mel(1, 20), torch.randn(1, 20 * SAMPLES, generator=generator(5)) * 0.1
    with torch.inference_mode():
        torch.testing.assert_close(F0Graph(half)(mel), F0Graph(ours)(mel))
        exact, made = HiftGraph(ours)(mel, source), HiftGraph(half)(mel, source)
    assert half.conv_pre.weight.dtype == half.ups[0].weight.dtype == torch.float16
    assert made.dtype == torch.float32
    torch.testing.assert_close(half.stft.analysis, ours.stft.analysis, rtol=0, atol=0)
    # Measured 0.3 % of the signal.
    assert (made - exact).norm() < 0.01 * exact.norm()


def reach(gradient, centre, per_frame):
    """Frames that one output frame depends on, as offsets of the first and the last."""
    touched = gradient.reshape(-1, per_frame).abs().amax(1).nonzero().ravel() - centre
    return int(touched[0]), int(touched[-1])


@reference.available
def test_receptive_field(hifts):
    """What the gradient of one frame of samples touches is what the sizes predict."""
    _, ours = hifts
    frames, centre = 61, 30
    mel = random_mel(1, frames).requires_grad_()
    source = (torch.randn(1, frames * SAMPLES, generator=generator(6)) * 0.1).requires_grad_()
    frame = ours.decode(mel, source)[0, centre * SAMPLES : (centre + 1) * SAMPLES]
    frame.backward(torch.randn(SAMPLES, generator=generator(7)))
    field = receptive_field(TINY.hift)
    assert reach(mel.grad, centre, TINY.hift.mel_bins) == (-field.mel, field.mel)
    assert reach(source.grad, centre, SAMPLES) == (-field.source, field.source)
    # The source ends within half a frame, where its phase does not lean on the next one.
    last = source.grad.reshape(frames, SAMPLES)[centre + field.source]
    assert last.nonzero().max() < SAMPLES // 2
    mel.grad = None
    F0Graph(ours)(mel)[0, centre].backward()
    assert reach(mel.grad, centre, TINY.hift.mel_bins) == (-field.f0, field.f0)


def test_receptive_field_of_the_public_sizes():
    """As measured on the public model: 14 frames of mel, 14.3 of source, 5 of mel for f0."""
    assert receptive_field(FULL.hift) == (14, 15, 5)
