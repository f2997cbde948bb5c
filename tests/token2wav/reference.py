"""The public reference of Step-Audio 2's token2wav, built at any size with random weights.

It is stepaudio2-minicpmo 0.1.1 of PyPI, unpacked under `.references`; `available` says whether it
is there. Its constructors leave degenerate weights (adaLN and the last layer are zero, so the
estimator gives exactly 0; f0 is under the voiced threshold), which are drawn anew here.
"""

import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from duologue.token2wav.config import FlowConfig, HiftConfig

FOLDER = Path(__file__).parents[2] / ".references/stepaudio2-minicpmo/stepaudio2"
MODULES = "stepaudio2.cosyvoice2"

available = pytest.mark.skipif(not FOLDER.is_dir(), reason="the reference is not unpacked")


def _package() -> None:
    """Make the sub-modules importable without the package's own __init__, which needs much more."""
    for name, path in (
        ("stepaudio2", FOLDER),
        ("stepaudio2.flashcosyvoice", FOLDER / "flashcosyvoice"),
    ):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [str(path)]
            sys.modules[name] = module


def build_flow(config: FlowConfig, seed: int) -> nn.Module:
    """The reference's flow; `decoder.rand_noise` [1, mel, 30000] is its noise."""
    _package()
    from stepaudio2.cosyvoice2.flow.decoder_dit import DiT
    from stepaudio2.cosyvoice2.flow.flow import CausalMaskedDiffWithXvec
    from stepaudio2.cosyvoice2.flow.flow_matching import CausalConditionalCFM
    from stepaudio2.cosyvoice2.transformer.upsample_encoder_v2 import UpsampleConformerEncoderV2

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = UpsampleConformerEncoderV2(**config.encoder.model_dump())
    dit = config.decoder.estimator
    # Two gigabytes of buffers, which are replaced below.
    no_buffer = mock.patch.object(torch, "zeros", lambda *_: torch.empty(0))
    with torch.random.fork_rng(devices=[]), no_buffer:
        torch.manual_seed(seed + 2)
        flow = CausalMaskedDiffWithXvec(
            **config.model_dump(exclude={"encoder", "decoder"}),
            encoder=encoder,
            decoder=CausalConditionalCFM(
                estimator=DiT(**dit.model_dump()),
                inference_cfg_rate=config.decoder.inference_cfg_rate,
            ),
        )
    # Buffers of the public size, in which a chunk's caches are returned.
    steps, kv = config.decoder.n_timesteps, (dit.depth, 2, dit.num_heads, 1000, 2 * dit.head_dim)
    conv = (dit.depth, 2, 2 * dit.hidden_size, 2)
    flow.decoder.att_cache_buffer = torch.zeros(steps, *kv)
    flow.decoder.cnn_cache_buffer = torch.zeros(steps, *conv)
    flow.decoder.estimator.att_cache_buffer = torch.zeros(kv)
    flow.decoder.estimator.cnn_cache_buffer = torch.zeros(conv)
    generator = torch.Generator().manual_seed(seed + 1)
    for name, parameter in flow.named_parameters():
        if "final_layer.linear" in name:
            parameter.data.normal_(0, 0.05, generator=generator)
        elif "adaLN" in name:
            std = 0.3 if name.endswith("bias") else 0.02
            parameter.data.normal_(0, std, generator=generator)
        elif parameter.dim() == 1:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return flow.eval().requires_grad_(False)


def build_hift(config: HiftConfig, seed: int) -> nn.Module:
    """The reference's HiFT, weight norm in the new spelling; most frames are voiced."""
    _package()
    from stepaudio2.flashcosyvoice.modules.hifigan import ConvRNNF0Predictor, HiFTGenerator

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hift = HiFTGenerator(
            in_channels=config.mel_bins,
            base_channels=config.base_channels,
            nb_harmonics=config.nb_harmonics,
            sampling_rate=config.sample_rate_hz,
            nsf_alpha=config.nsf_alpha,
            nsf_sigma=config.nsf_sigma,
            nsf_voiced_threshold=config.voiced_threshold_hz,
            upsample_rates=list(config.upsample_rates),
            upsample_kernel_sizes=list(config.upsample_kernel_sizes),
            istft_params={"n_fft": config.istft_n_fft, "hop_len": config.istft_hop},
            resblock_kernel_sizes=list(config.resblock_kernel_sizes),
            resblock_dilation_sizes=list(config.resblock_dilation_sizes),
            source_resblock_kernel_sizes=list(config.source_resblock_kernel_sizes),
            source_resblock_dilation_sizes=list(config.source_resblock_dilation_sizes),
            lrelu_slope=config.lrelu_slope,
            audio_limit=config.audio_limit,
            f0_predictor=ConvRNNF0Predictor(1, config.mel_bins, config.f0_channels),
        )
    generator = torch.Generator().manual_seed(seed + 1)
    hift.f0_predictor.classifier.weight.data.mul_(1500.0)
    hift.f0_predictor.classifier.bias.data.fill_(15.0)
    for name, parameter in hift.named_parameters():
        if name.endswith("original0"):
            parameter.data.mul_(1.5)
        if name.endswith(".alpha"):
            parameter.data.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
    return hift.eval().requires_grad_(False)


def fold_weight_norm(hift: nn.Module) -> dict[str, Tensor]:
    """The reference HiFT's state dict with plain weights, as torch computes them."""
    state = {k: v for k, v in hift.state_dict().items() if "parametrizations" not in k}
    for name, module in hift.named_modules():
        if hasattr(module, "parametrizations"):
            state[f"{name}.weight"] = module.weight.detach().clone()
    return state


class ReferenceStream:
    """The reference's streaming flow of one session, as its `token2wav.stream` drives it."""

    def __init__(self, flow: nn.Module, tokens: Tensor, mel: Tensor, embedding: Tensor, steps=10):
        """Prompt tokens int [1, n], mel [1, 2 n, 80], speaker embedding [1, 192]."""
        self.flow, self.embedding, self.steps = flow, embedding, steps
        self.prompt_frames = mel.shape[1]
        cache = flow.setup_cache(torch.cat([tokens, tokens[:, :3]], 1), mel, embedding, steps)
        self._keep(cache)

    def step(self, tokens: np.ndarray, final: bool) -> Tensor:
        """Tokens int [n] to mel [frames, 80]."""
        mel, cache = self.flow.inference_chunk(
            torch.tensor(tokens, device=self.embedding.device)[None],
            self.embedding,
            self.cache,
            final,
            self.steps,
        )
        kv = cache["estimator_att_cache"]
        if kv.shape[4] > self.prompt_frames + 100:
            kept = kv[..., : self.prompt_frames, :], kv[..., -100:, :]
            cache = cache | {"estimator_att_cache": torch.cat(kept, 4)}
        self._keep(cache)
        return mel[0].T.clone()

    def _keep(self, cache: dict[str, Tensor]) -> None:
        # What the reference returns are views of buffers that every stream shares.
        self.cache = {name: value.clone() for name, value in cache.items()}
