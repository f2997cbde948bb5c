"""What is refused before it reaches a graph: an index outside a table is noise, or worse."""

from collections.abc import Sequence

import numpy as np

from duologue.errors import ConfigError, EngineError, InputError
from duologue.token2wav.config import Token2wavConfig
from duologue.token2wav.step import FlowWork, VocoderWork, VoicePrompt


def check_whole_tokens(config: Token2wavConfig, **sizes: int) -> None:
    """Whether sizes in mel frames, by their names, are those of one token or more.

    Raises:
        ConfigError: one is not.
    """
    stride = config.frames_per_token
    for name, frames in sizes.items():
        if frames < stride or frames % stride:
            raise ConfigError(
                f"{name}: found {frames} frames, expected a multiple of {stride}, "
                "the frames of a token"
            )


def check_tokens(tokens: np.ndarray, codebook: int, name: str = "tokens") -> np.ndarray:
    """Speech tokens as int32 [n].

    Args:
        tokens: Whole numbers of any type, [n].
        codebook: How many codes there are; a language model's ids begin elsewhere, and its offset
            has to be taken off before.
        name: What to call them in an error.

    Raises:
        InputError: not one row of whole numbers, or one outside the codebook.
    """
    expected = f"expected one row of whole numbers from 0 to {codebook - 1}"
    try:
        tokens = np.asarray(tokens)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: found no array ({error}), {expected}") from error
    if tokens.shape == (0,):
        return np.zeros(0, np.int32)
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{name}: found {tokens.dtype} {list(tokens.shape)}, {expected}")
    outside = np.flatnonzero((tokens < 0) | (tokens >= codebook))
    if outside.size:
        place = outside[0]
        raise InputError(
            f"{name}[{place}]: found {tokens[place]}, expected 0 to {codebook - 1}; "
            "take the language model's offset off, and send no other ids"
        )
    return tokens.astype(np.int32)


def check_once(work: Sequence[FlowWork] | Sequence[VocoderWork]) -> None:
    """Whether each session has one chunk.

    Raises:
        InputError: one has two.
    """
    if len({item.handle for item in work}) < len(work):
        raise InputError("a session has two chunks in one step; put them into two steps")


def check_mel(mel: np.ndarray, bins: int) -> np.ndarray:
    """Mel as float32 [frames, bins].

    Raises:
        InputError: not such an array of numbers, or one is not finite in float32.
    """
    try:
        mel = np.asarray(mel)
    except ValueError as error:
        raise InputError(f"mel: found no array ({error}), expected [frames, {bins}]") from error
    check_mel_shape(mel.shape, bins)
    if mel.dtype.kind not in "fiu":
        raise InputError(f"mel: found {mel.dtype}, expected float32")
    with np.errstate(over="ignore"):
        mel = mel.astype(np.float32)
    if not np.isfinite(mel).all():
        raise InputError("mel: found values that are not finite in float32; take what a flow gave")
    return mel


def check_samples(samples: np.ndarray) -> np.ndarray:
    """What an engine gave for a chunk, if it is sound: a listener's ear is no place for NaN.

    Raises:
        EngineError: a sample is not finite.
    """
    if not np.isfinite(samples).all():
        raise EngineError(
            "the engine gave samples that are not finite; try another precision or engine"
        )
    return samples


def check_mel_shape(shape: Sequence[int], bins: int) -> None:
    """Whether an array is a mel of so many bins.

    Raises:
        InputError: it is not.
    """
    if len(shape) != 2 or shape[1] != bins:
        raise InputError(f"mel: found shape {list(shape)}, expected [frames, {bins}]")


def check_chunks(work: Sequence[FlowWork], config: Token2wavConfig) -> list[tuple[np.ndarray, int]]:
    """The tokens of each chunk, int32 [n], and how many of them it speaks.

    Raises:
        InputError: a token is outside the codebook, a chunk has nothing to speak, or a session has
            two chunks.
    """
    check_once(work)
    chunks = []
    for item in work:
        tokens = check_tokens(item.tokens, config.flow.vocab_size)
        spoken = len(tokens) - (0 if item.final else config.look_ahead)
        if spoken < 1 and not item.final:
            raise InputError(
                f"chunk: found {len(tokens)} tokens, expected more than the look-ahead of "
                f"{config.look_ahead}; wait for more, or mark it as final"
            )
        chunks.append((tokens, spoken))
    return chunks


def check_voice(voice: VoicePrompt, config: Token2wavConfig, max_frames: int | None = None) -> None:
    """Whether a voice fits the model.

    Args:
        voice: The voice.
        config: Sizes of the model.
        max_frames: Mel frames of the longest prompt; None if none is too long.

    Raises:
        InputError: too short, too long, of other types or sizes, or not finite in float32.
    """
    tokens = check_tokens(voice.tokens, config.flow.vocab_size, "tokens of the voice")
    # A prompt that is reopened leaves a token to its caches.
    least = config.look_ahead + (1 if config.reopens_prompt else 0)
    if len(tokens) < least:
        raise InputError(
            f"voice: found {len(tokens)} tokens, expected at least {least}; "
            "record a few seconds of speech"
        )
    bins, frames = config.flow.output_size, config.frames_per_token * len(tokens)
    if max_frames is not None and frames > max_frames:
        raise InputError(
            f"voice: found {frames} frames, expected at most {max_frames}; "
            "take a shorter clip, or make the engine with a larger max_prompt"
        )
    for name, array in (("mel", voice.mel), ("embedding", voice.embedding)):
        if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.floating):
            kind = getattr(array, "dtype", type(array).__name__)
            raise InputError(
                f"{name} of the voice: found {kind}, expected a numpy array of float32; "
                "make the voice again from its clip"
            )
    if voice.mel.shape[1:] != (bins,) or abs(len(voice.mel) - frames) > config.frames_per_token:
        raise InputError(
            f"mel of the voice: found {list(voice.mel.shape)}, expected [about {frames}, {bins}] "
            f"for {len(tokens)} tokens; take both from one clip"
        )
    if voice.embedding.shape != (config.flow.spk_embed_dim,):
        raise InputError(
            f"embedding of the voice: found {list(voice.embedding.shape)}, "
            f"expected [{config.flow.spk_embed_dim}]; take it from this model's speaker encoder"
        )
    with np.errstate(over="ignore"):
        narrow = [array.astype(np.float32) for array in (voice.mel, voice.embedding)]
    if not all(np.isfinite(array).all() for array in narrow):
        raise InputError(
            "voice: found values that are not finite in float32; make it again from its clip"
        )
