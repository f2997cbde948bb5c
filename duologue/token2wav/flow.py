"""The flow model: speech tokens and a voice to mel, and its parts as graphs.

State-dict names and mathematics are those of stepfun-ai/Step-Audio2 (`cosyvoice2/flow/flow.py`,
`flow_matching.py`). The graphs' forwards take and give the ports of `duologue.token2wav.ports`, by
name and in order. Whatever the type of the weights, all but caches is float32 outside.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.token2wav.config import FlowConfig
from duologue.token2wav.dit import DiT, DitCache
from duologue.token2wav.encoder import AttentionCache, Encoder, EncoderCache


class Flow(nn.Module):
    """The weights of the flow; the graphs below run them."""

    def __init__(self, config: FlowConfig):
        super().__init__()
        self.config = config
        self.input_embedding = nn.Embedding(config.vocab_size, config.input_size)
        self.spk_embed_affine_layer = nn.Linear(config.spk_embed_dim, config.output_size)
        self.encoder = Encoder(config.encoder)
        self.encoder_proj = nn.Linear(config.encoder.output_size, config.output_size)
        self.decoder = nn.ModuleDict({"estimator": DiT(config.decoder.estimator)})

    @property
    def estimator(self) -> DiT:
        """The DiT, which the checkpoint has one level deeper."""
        estimator = self.decoder["estimator"]
        assert isinstance(estimator, DiT)
        return estimator

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.encoder_proj.weight.device

    def speaker(self, embedding: Tensor) -> Tensor:
        """Speaker embedding [batch, spk_embed_dim] to the estimator's `spk` [batch, mel]."""
        return self.spk_embed_affine_layer(F.normalize(embedding, dim=1))


class EncoderOffline(nn.Module):
    """Graph `encoder_offline`."""

    def __init__(self, flow: Flow):
        super().__init__()
        self.flow = flow

    def forward(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor]:
        """All tokens of an utterance to `mu`."""
        ahead = self.flow.encoder.ahead
        x = F.pad(self.flow.input_embedding(tokens), (0, 0, 0, ahead))
        hidden, _ = self.flow.encoder(x, F.pad(valid, (0, ahead)), valid, None)
        return (self.flow.encoder_proj(hidden).float(),)


class EncoderStream(nn.Module):
    """Graph `encoder_stream`."""

    def __init__(self, flow: Flow):
        super().__init__()
        self.flow = flow

    def forward(
        self,
        tokens: Tensor,
        valid: Tensor,
        mask: Tensor,
        pre_cache: Tensor,
        up_cache: Tensor,
        kv_token: Tensor,
        distance_token: Tensor,
        mask_token: Tensor,
        kv_mel: Tensor,
        distance_mel: Tensor,
        mask_mel: Tensor,
    ) -> tuple[Tensor, ...]:
        """One chunk to `mu` and the new caches."""
        cache = EncoderCache(
            pre_cache,
            up_cache,
            AttentionCache(kv_token, distance_token, mask_token),
            AttentionCache(kv_mel, distance_mel, mask_mel),
        )
        hidden, new = self.flow.encoder(self.flow.input_embedding(tokens), valid, mask, cache)
        return self.flow.encoder_proj(hidden).float(), *new


class EstimatorOffline(nn.Module):
    """Graph `estimator_offline`."""

    def __init__(self, flow: Flow):
        super().__init__()
        self.estimator = flow.estimator

    def forward(
        self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, t: Tensor, mask: Tensor
    ) -> tuple[Tensor]:
        """Velocity of whole utterances."""
        modulations = self.estimator.modulations(t)
        velocity, _, _ = self.estimator(x, mu, spk, cond, modulations, mask, None)
        return (velocity.float(),)


class EstimatorStream(nn.Module):
    """Graph `estimator_stream`."""

    def __init__(self, flow: Flow):
        super().__init__()
        self.estimator = flow.estimator

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        t: Tensor,
        mask: Tensor,
        conv_cache: Tensor,
        kv: Tensor,
        kv_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Velocity of one chunk, and its new caches."""
        cache = DitCache(conv_cache, kv, kv_mask)
        modulations = self.estimator.modulations(t)
        velocity, convs, kvs = self.estimator(x, mu, spk, cond, modulations, mask, cache)
        return velocity.float(), torch.stack(convs, 1), torch.stack(kvs, 1)
