"""What the encoder and the DiT share: attention, its mask, and the tail of a padded row."""

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """`softmax(q k / sqrt(d) + bias) v`; the softmax is taken in float32.

    Args:
        query: [batch, heads, n, d].
        keys: [batch, heads, m, d].
        values: [batch, heads, m, d].
        bias: Broadcasts to [batch, heads, n, m].

    Returns:
        [batch, n, heads * d].
    """
    if torch.compiler.is_exporting():
        # The exporter's own decomposition takes the softmax in half precision.
        scores = (query * query.shape[-1] ** -0.5) @ keys.transpose(-2, -1)
        weights = torch.softmax(scores.float() + bias.float(), -1).to(values.dtype)
        mixed = weights @ values
    else:
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
    return mixed.transpose(1, 2).flatten(2)


def key_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask [batch, m] of real keys to a bias [batch, 1, 1, m].

    It is finite, also in float16, so a row without any real key gives no NaN; `exp` of it is 0.
    """
    return ((mask - 1) * 1e4).to(dtype)[:, None, None, :]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, n, heads * d] to [batch, heads, n, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def tail(x: Tensor, count: Tensor, size: int) -> Tensor:
    """The `size` columns that end each row.

    Args:
        x: [batch, channels, size + n], of which the last n are new and may be padded.
        count: int64 [batch], how many of the new ones are real.
        size: Columns to take.
    """
    columns = count[:, None] + torch.arange(size, device=x.device)
    return x.gather(2, columns[:, None, :].expand(-1, x.shape[1], -1))
