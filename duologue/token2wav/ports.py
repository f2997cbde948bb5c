"""Names, types and shapes of the graphs of token2wav: the single place that says them.

In shapes, a name is a size that varies, and one name is one size within a graph; "2*tokens" and
"tokens+3" are derived from it. `rows` of the estimator are twice the sessions: first every
conditional row, then every unconditional one (`mu`, `spk` and `cond` zero). Caches may have no
frames yet. Masks are 1 for what is real and 0 for padding, which stands behind the real entries
of `tokens`, `x` and the like, and anywhere in a cache.

In half precision only the caches (`*_cache`, `kv*`, `new_*`) are of that type.
"""

from collections.abc import Callable
from typing import NamedTuple

from duologue.engines.graph import Port
from duologue.token2wav.config import Token2wavConfig


class Signature(NamedTuple):
    """What a graph takes and gives, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def _float(name: str, *shape: int | str) -> Port:
    return Port(name, "float32", shape)


def encoder_stream(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """One chunk of speech tokens to `mu`, the mean that the flow starts from.

    `tokens` are those spoken by this chunk (`mask`, 1 for each; padding behind them), then
    `look_ahead` more that are only looked at. `valid` is 0 where there is no token at all: padding,
    and the look-ahead of a final chunk. A row of n spoken tokens has its look-ahead at n. `kv_*`
    hold keys and values side by side; `distance_*` says how far before the chunk's first token
    (frame) each lies, 1 for the nearest. The new ones are only those of this chunk, of which a
    row's own are the first n (frames: 2n).
    """
    encoder = config.flow.encoder
    ahead, up = config.look_ahead, config.frames_per_token
    heads, width = encoder.attention_heads, encoder.output_size
    head_kv = 2 * width // heads
    pre_cache = ("batch", width, 2)
    up_cache = ("batch", width, 2 * up)
    frames = f"{up}*tokens"
    return Signature(
        (
            Port("tokens", "int64", ("batch", f"tokens+{ahead}")),
            _float("valid", "batch", f"tokens+{ahead}"),
            _float("mask", "batch", "tokens"),
            Port("pre_cache", dtype, pre_cache),
            Port("up_cache", dtype, up_cache),
            Port("kv_token", dtype, ("batch", encoder.num_blocks, heads, "cached_tokens", head_kv)),
            _float("distance_token", "batch", "cached_tokens"),
            _float("mask_token", "batch", "cached_tokens"),
            Port("kv_mel", dtype, ("batch", encoder.num_up_blocks, heads, "cached", head_kv)),
            _float("distance_mel", "batch", "cached"),
            _float("mask_mel", "batch", "cached"),
        ),
        (
            _float("mu", "batch", frames, config.flow.output_size),
            Port("new_pre_cache", dtype, pre_cache),
            Port("new_up_cache", dtype, up_cache),
            Port("new_kv_token", dtype, ("batch", encoder.num_blocks, heads, "tokens", head_kv)),
            Port("new_kv_mel", dtype, ("batch", encoder.num_up_blocks, heads, frames, head_kv)),
        ),
    )


def encoder_offline(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """Every speech token of an utterance, prompt first, to `mu`."""
    return Signature(
        (
            Port("tokens", "int64", ("batch", "tokens")),
            _float("valid", "batch", "tokens"),
        ),
        (_float("mu", "batch", f"{config.frames_per_token}*tokens", config.flow.output_size),),
    )


def estimator_stream(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """The velocity of one chunk at time `t`, over the keys and values of the frames before it.

    The order of the frames in `kv` does not matter. `conv_cache` is [.., conv, channel, frame]:
    the two frames before the chunk, for either causal convolution of each block.
    """
    dit = config.flow.decoder.estimator
    mel = config.flow.output_size
    head_kv = 2 * dit.head_dim
    conv_cache = ("rows", dit.depth, 2, dit.hidden_size, 2)
    return Signature(
        (
            _float("x", "rows", "frames", mel),
            _float("mu", "rows", "frames", mel),
            _float("spk", "rows", mel),
            _float("cond", "rows", "frames", mel),
            _float("t", 1),
            _float("mask", "rows", "frames"),
            Port("conv_cache", dtype, conv_cache),
            Port("kv", dtype, ("rows", dit.depth, dit.num_heads, "cached", head_kv)),
            _float("kv_mask", "rows", "cached"),
        ),
        (
            _float("velocity", "rows", "frames", mel),
            Port("new_conv_cache", dtype, conv_cache),
            Port("new_kv", dtype, ("rows", dit.depth, dit.num_heads, "frames", head_kv)),
        ),
    )


def estimator_offline(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """The velocity of whole utterances at time `t`."""
    mel = config.flow.output_size
    return Signature(
        (
            _float("x", "rows", "frames", mel),
            _float("mu", "rows", "frames", mel),
            _float("spk", "rows", mel),
            _float("cond", "rows", "frames", mel),
            _float("t", 1),
            _float("mask", "rows", "frames"),
        ),
        (_float("velocity", "rows", "frames", mel),),
    )


def f0(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """Log-mel to the fundamental frequency in Hz, one value a frame."""
    return Signature(
        (_float("mel", "batch", "frames", config.hift.mel_bins),),
        (_float("f0_hz", "batch", "frames"),),
    )


def hift(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """Log-mel and the source signal to samples."""
    samples = f"{config.hift.samples_per_frame}*frames"
    return Signature(
        (
            _float("mel", "batch", "frames", config.hift.mel_bins),
            _float("source", "batch", samples),
        ),
        (_float("wav", "batch", samples),),
    )


def campplus(config: Token2wavConfig, dtype: str = "float32") -> Signature:
    """Kaldi filter banks of a clip, its mean taken off, to a speaker embedding."""
    return Signature(
        (_float("fbank", "batch", "frames", 80),),
        (_float("embedding", "batch", config.flow.spk_embed_dim),),
    )


SIGNATURES: dict[str, Callable[..., Signature]] = {
    signature.__name__: signature
    for signature in (
        encoder_stream,
        encoder_offline,
        estimator_stream,
        estimator_offline,
        f0,
        hift,
        campplus,
    )
}
