"""Stage `flow`: conditional flow matching from speech tokens to mel, for use in chunks.

Lipman et al. 2022 (arXiv 2210.02747) with the optimal-transport path, the cosine schedule and the
dropped condition of Matcha-TTS and CosyVoice 2. The modules are those that the product runs; what
differs is the mask: a frame sees its own chunk and what lies before it, with chunks of any size,
as it does when a call is spoken chunk by chunk.
"""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.token2wav.config import FlowConfig, Token2wavConfig
from duologue.token2wav.dit import DiT, DiTBlock
from duologue.token2wav.encoder import Encoder, positions
from duologue.token2wav.flow import Flow
from duologue.training.loop import OneModel, Settings, half, train
from duologue.training.speech import FRAMES_PER_TOKEN, Speech, normal, windows

WINDOW = 104
"""Tokens of a training window: about 4 s, and frames that a GPU's attention need not pad."""

BATCH = 128
CHUNKS, REACH = (10, 50), (40, 104)
"""Tokens of a chunk, and how many a chunk sees before it, at least and at most."""

UNCONDITIONAL, PROMPTED, LONGEST_PROMPT = 0.2, 0.5, 60
PRIOR = 0.25
"""Weight of the encoder's own guess at the mel."""


class Batch(NamedTuple):
    """Windows of speech.

    Attributes:
        tokens: int64 [batch, n + ahead].
        valid: float32 [batch, n + ahead], 0 where the look-ahead is to see nothing.
        mel: normal mel, [batch, 2 n, 80].
    """

    tokens: Tensor
    valid: Tensor
    mel: Tensor


def voice_embedding(config: FlowConfig, device: torch.device | None = None) -> Tensor:
    """The one voice's speaker embedding: any constant does."""
    return torch.ones(config.spk_embed_dim, device=device)


def chunk_bias(length: int, chunk: Tensor, offset: Tensor, reach: Tensor) -> Tensor:
    """Attention bias [batch, 1, length, length] of chunks of `chunk` places, the first shorter.

    Args:
        length: Places.
        chunk: int64 [batch].
        offset: int64 [batch], how much of the first chunk is missing.
        reach: int64 [batch], how many places before itself a chunk sees.
    """
    place = torch.arange(length, device=chunk.device)
    of = (place + offset[:, None]) // chunk[:, None]
    begin = of * chunk[:, None] - offset[:, None]
    later = of[:, :, None] < of[:, None, :]
    far = place < (begin - reach[:, None])[:, :, None]
    return ((later | far).float() * -1e4)[:, None]


def encode(encoder: Encoder, x: Tensor, valid: Tensor, bias: tuple[Tensor, Tensor]) -> Tensor:
    """`Encoder.forward` without a cache and with any attention bias at either rate."""
    x = encoder.embed(x) * valid[..., None].to(x.dtype)
    x, _ = encoder.pre_lookahead_layer(x, None)
    x = _through(encoder.encoders, x, bias[0])
    x, _ = encoder.up_layer(x, None)
    return encoder.after_norm(_through(encoder.up_encoders, encoder.up_embed(x), bias[1]))


def _through(layers: nn.ModuleList, x: Tensor, bias: Tensor) -> Tensor:
    at = positions(x.shape[1], None, x)
    for layer in layers:
        x, _ = layer(x, at, bias.to(x.dtype), None)
    return x


def estimate(
    dit: DiT, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, t: Tensor, bias: Tensor
) -> Tensor:
    """`DiT.forward` without a cache, with a time for each row and any attention bias."""
    condition = F.silu(dit.t_embedder(t)).to(x.dtype)[:, None]
    features = torch.cat([x, mu, spk[:, None].expand_as(x), cond], -1)
    x = dit.in_proj(features)
    count = torch.full((x.shape[0],), x.shape[1], device=x.device)
    start = x.new_zeros(x.shape[0], 2, x.shape[2], 2)
    for block in dit.blocks:
        assert isinstance(block, DiTBlock)
        modulation = block.adaLN_modulation(condition)
        x, _, _ = block(x, modulation, bias.to(x.dtype), count, start.to(x.dtype), None)
    return dit.final_layer(x, dit.final_layer.adaLN_modulation(condition))


def initialise(flow: Flow) -> None:
    """AdaLN and the last layer begin at zero (Peebles and Xie 2022, arXiv 2212.09748)."""
    dit = flow.estimator
    for block in (*dit.blocks, dit.final_layer):
        linear = block.get_submodule("adaLN_modulation.1")
        assert isinstance(linear, nn.Linear)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    nn.init.zeros_(dit.final_layer.linear.weight)
    nn.init.zeros_(dit.final_layer.linear.bias)
    for layer in (*flow.encoder.encoders, *flow.encoder.up_encoders):
        for name in ("pos_bias_u", "pos_bias_v"):
            nn.init.normal_(layer.get_parameter(f"self_attn.{name}"), std=0.02)


def matching_loss(
    flow: Flow, batch: Batch, bias: tuple[Tensor, Tensor], draws: "Draws"
) -> tuple[Tensor, Tensor]:
    """Errors of the velocity and of the prior, each a mean."""
    mel = batch.mel
    hidden = encode(flow.encoder, flow.input_embedding(batch.tokens), batch.valid, bias)
    mu = flow.encoder_proj(hidden)
    prior = (mu.float() - mel).abs().mean()
    t = 1 - torch.cos(0.5 * torch.pi * draws.time)
    x = (1 - t)[:, None, None] * draws.noise + t[:, None, None] * mel
    keep = draws.conditional[:, None, None]
    cond = mel * draws.prompt[..., None] * keep
    speaker = flow.speaker(voice_embedding(flow.config, mel.device)[None]).expand(len(mel), -1)
    velocity = estimate(flow.estimator, x, mu * keep, speaker * keep[:, 0], cond, t, bias[1])
    return (velocity.float() - (mel - draws.noise)).square().mean(), prior


class Draws(NamedTuple):
    """What is random in `matching_loss`.

    Attributes:
        time: [batch], in 0..1.
        noise: As mel.
        conditional: [batch], 1 for a row that has its condition.
        prompt: [batch, frames], 1 for a frame whose mel is known.
    """

    time: Tensor
    noise: Tensor
    conditional: Tensor
    prompt: Tensor


class FlowTask:
    """See `loop.Task`."""

    name, peak, weight_decay = "flow", 1.2e-3, 0.01

    def __init__(
        self, speech: Speech, settings: Settings, config: Token2wavConfig, *, batch: int = BATCH
    ):
        assert speech.codes is not None
        self._speech, self._codes = speech, speech.codes
        self._batch, self._device = batch, settings.device
        torch.manual_seed(settings.seed)
        self.model = Flow(config.flow)
        initialise(self.model)
        self.model.to(settings.device)
        self._ahead = config.look_ahead
        low, high = speech.frames("train")
        self._bounds = low, high
        self._window = min(WINDOW, (high - low) // (4 * FRAMES_PER_TOKEN))
        self._autocast = half(settings.device)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Velocity, and the encoder's prior."""
        batch, device = self._batch, self._device
        frames = FRAMES_PER_TOKEN * (self._window + self._ahead)
        at = windows(*self._bounds, frames, batch, FRAMES_PER_TOKEN, device)
        drawn = self._take(at)
        # At the end of an answer nothing lies ahead.
        ends = torch.rand(batch, 1, device=device) < 0.3
        ahead = torch.arange(self._window + self._ahead, device=device) >= self._window
        drawn = drawn._replace(valid=drawn.valid * ~(ends & ahead))
        with self._autocast:
            velocity, prior = matching_loss(self.model, drawn, self._masks(), self._draw(drawn))
        return velocity + PRIOR * prior, {"velocity": velocity, "prior": prior}

    def _take(self, at: Tensor) -> Batch:
        tokens = self._codes[at[:, ::FRAMES_PER_TOKEN] // FRAMES_PER_TOKEN].long()
        spoken = at[:, : at.shape[1] - FRAMES_PER_TOKEN * self._ahead]
        return Batch(
            tokens, torch.ones_like(tokens, dtype=torch.float32), normal(self._speech.mel[spoken])
        )

    def _masks(self) -> tuple[Tensor, Tensor]:
        """Half of the rows see everything, the others chunks of a random size."""
        batch, device = self._batch, self._device
        chunk = torch.randint(CHUNKS[0], CHUNKS[1] + 1, (batch,), device=device)
        whole = torch.rand(batch, device=device) < 0.5
        chunk = torch.where(whole, 10 * self._window, chunk)
        offset = (torch.rand(batch, device=device) * chunk).long() * ~whole
        reach = torch.randint(REACH[0], REACH[1] + 1, (batch,), device=device)
        frames = FRAMES_PER_TOKEN
        return (
            chunk_bias(self._window, chunk, offset, reach),
            chunk_bias(frames * self._window, frames * chunk, frames * offset, frames * reach),
        )

    def _draw(self, batch: Batch) -> Draws:
        rows, device = self._batch, self._device
        known = torch.rand(rows, 1, device=device) * FRAMES_PER_TOKEN * LONGEST_PROMPT
        known = known * (torch.rand(rows, 1, device=device) < PROMPTED)
        return Draws(
            torch.rand(rows, device=device),
            torch.randn_like(batch.mel),
            (torch.rand(rows, device=device) >= UNCONDITIONAL).float(),
            (torch.arange(batch.mel.shape[1], device=device) < known).float(),
        )

    def look(self, model: nn.Module) -> dict[str, float]:
        """The losses on the dev split, with the same draws each time."""
        assert isinstance(model, Flow)
        low, high = self._speech.frames("dev")
        size = FRAMES_PER_TOKEN * (self._window + self._ahead)
        rows = min(32, max(1, (high - low) // size))
        first = low + FRAMES_PER_TOKEN * (
            torch.arange(rows, device=self._device)
            * ((high - low - size) // (FRAMES_PER_TOKEN * rows))
        )
        batch = self._take(first[:, None] + torch.arange(size, device=self._device))
        generator = torch.Generator(self._device).manual_seed(1)
        draws = Draws(
            (torch.arange(rows, device=self._device) + 0.5) / rows,
            torch.randn(batch.mel.shape, generator=generator, device=self._device),
            torch.ones(rows, device=self._device),
            torch.zeros(batch.mel.shape[:2], device=self._device),
        )
        # Of its whole size: a GPU's attention takes no bias that is spread over its last axis.
        bias = tuple(
            torch.zeros(1, 1, n, n, device=self._device)
            for n in (self._window, FRAMES_PER_TOKEN * self._window)
        )
        velocity, prior = matching_loss(model, batch, (bias[0], bias[1]), draws)
        return {"dev_velocity": float(velocity), "dev_prior": float(prior)}

    def shipped(self, model: nn.Module) -> nn.Module:
        """All of it."""
        return model

    def after_step(self) -> None:
        """Windows are drawn anew each step."""


def train_flow(
    speech: Speech, settings: Settings, config: Token2wavConfig, *, batch: int = BATCH
) -> Path:
    """Train; WORK/flow.safetensors."""
    return train(OneModel(FlowTask(speech, settings, config, batch=batch)), settings)
