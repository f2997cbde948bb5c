"""The talker in PyTorch; parameters have the names of Llama's public checkpoints."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from duologue.talker.config import TalkerConfig


class RmsNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019, arXiv 1910.07467), in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to the same."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Causal self-attention with rotary positions (Su et al. 2021, arXiv 2104.09864)."""

    def __init__(self, config: TalkerConfig):
        super().__init__()
        self.heads = config.heads
        width = config.hidden_size
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """[batch, n, width] to the same, and all keys and values [batch, 2, heads, m, d]."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, *turn), rotate(key, *turn)
        new = torch.stack([key, value], 1)
        every = new if past is None else torch.cat([past, new], 3)
        mixed = F.scaled_dot_product_attention(query, every[:, 0], every[:, 1], attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), every


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: TalkerConfig):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, n, width] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: TalkerConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.norm_eps)


class Talker(nn.Module):
    """The whole model. Its head is the embedding."""

    def __init__(self, config: TalkerConfig):
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
                "layers": nn.ModuleList(Layer(config) for _ in range(config.layers)),
                "norm": RmsNorm(config.hidden_size, config.norm_eps),
            }
        )

    def hidden(
        self,
        ids: Tensor,
        past: Tensor | None,
        *,
        document: Tensor | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """What the head reads.

        Args:
            ids: int64 [batch, n].
            past: Keys and values before them, [batch, layers, 2, heads, m, d].
            document: [batch, n]; where it is given, and without a past, each id sees only those of
                its own document. Rotary positions are relative, so they need not begin anew.
            dropout: Of the embeddings and of each residual branch.

        Returns:
            [batch, n, width], and the keys and values of all, as `past`.
        """
        before = 0 if past is None else past.shape[4]
        length = ids.shape[1]
        place = torch.arange(length, device=ids.device)
        x = F.dropout(self.model["embed_tokens"](ids), dropout)
        turn = angles(place + before, self.config, x)
        mask = torch.arange(before + length, device=ids.device) <= place[:, None] + before
        if document is not None:
            mask = (mask & (document[:, :, None] == document[:, None, :]))[:, None]
        layers, caches = self.model["layers"], []
        assert isinstance(layers, nn.ModuleList)
        for i, layer in enumerate(layers):
            assert isinstance(layer, Layer)
            y, every = layer.self_attn(
                layer.input_layernorm(x), turn, mask, None if past is None else past[:, i]
            )
            x = x + F.dropout(y, dropout)
            x = x + F.dropout(layer.mlp(layer.post_attention_layernorm(x)), dropout)
            caches.append(every)
        return self.model["norm"](x), torch.stack(caches, 1)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the next id, [..., vocab_size]."""
        return F.linear(hidden, self.get_parameter("model.embed_tokens.weight"))

    def forward(self, ids: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """The graph `talker`: ids [batch, n] and a past to logits of the last, and the new past."""
        hidden, every = self.hidden(ids, past)
        return self.head(hidden[:, -1]).float(), every


def angles(place: Tensor, config: TalkerConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, d] of each position, in the type of `like`."""
    pairs = torch.arange(0, config.head_size, 2, device=place.device, dtype=torch.float32)
    frequency = config.rope_theta ** (-pairs / config.head_size)
    angle = (place[:, None].float() * frequency).repeat(1, 2)
    return angle.cos().to(like), angle.sin().to(like)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn [..., n, d] by its positions; the halves of d make pairs."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine
