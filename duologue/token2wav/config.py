"""Sizes and rates of a token2wav model, and the loader of the public `flow.yaml`.

The defaults are the public Step-Audio 2 sizes (stepfun-ai/Step-Audio2). Another decoder of the kind
(another codebook, token rate or look-ahead) is another configuration.
"""

from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from duologue.errors import ConfigError, ModelError

Positive = Annotated[int, Field(gt=0, le=16_384)]
"""A width or a count; far above any real one, and small enough to build."""

Many = Annotated[int, Field(gt=0, le=1_000_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class EncoderConfig(_Strict):
    """The conformer encoder: `num_blocks` layers at token rate, `num_up_blocks` at mel rate.

    Field names are those of `flow.yaml`.
    """

    input_size: Positive = 512
    output_size: Positive = 512
    input_layer: Literal["linear"] = "linear"
    pre_lookahead_len: Positive = 3
    num_blocks: Positive = 6
    num_up_blocks: Positive = 4
    up_stride: Positive = 2
    up_scale_factor: Positive = 2
    attention_heads: Positive = 8
    pos_enc_layer_type: Literal["rel_pos_espnet"] = "rel_pos_espnet"
    selfattention_layer_type: Literal["rel_selfattn"] = "rel_selfattn"
    key_bias: Literal[True] = True
    linear_units: Positive = 2048
    dropout_rate: float = 0.1
    positional_dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    normalize_before: Literal[True] = True


class EstimatorConfig(_Strict):
    """The DiT that estimates the flow's velocity. Field names are those of `flow.yaml`."""

    in_channels: Positive = 320
    out_channels: Positive = 80
    mlp_ratio: float = Field(default=4.0, ge=0.125, le=64)
    depth: Positive = 16
    num_heads: Positive = 8
    head_dim: Positive = 64
    hidden_size: Positive = 512

    @property
    def mlp_size(self) -> int:
        """Width of the feed-forward layer."""
        return int(self.hidden_size * self.mlp_ratio)


class SolverConfig(_Strict):
    """The conditional flow matching around the estimator."""

    inference_cfg_rate: float = Field(default=0.7, ge=0, le=100)
    estimator: EstimatorConfig = EstimatorConfig()
    n_timesteps: Positive = 10


class FlowConfig(_Strict):
    """Speech tokens to mel."""

    input_size: Positive = 512
    output_size: Positive = 80
    spk_embed_dim: Positive = 192
    output_type: Literal["mel"] = "mel"
    vocab_size: Many = 6561
    encoder: EncoderConfig = EncoderConfig()
    decoder: SolverConfig = SolverConfig()

    @model_validator(mode="after")
    def _sizes_agree(self) -> "FlowConfig":
        mel, estimator = self.output_size, self.decoder.estimator
        if estimator.in_channels != 4 * mel or estimator.out_channels != mel:
            raise ValueError(
                f"the estimator takes {estimator.in_channels} channels and gives "
                f"{estimator.out_channels}; {4 * mel} and {mel} belong to {mel} mel bins"
            )
        if self.encoder.up_scale_factor != self.encoder.up_stride:
            raise ValueError(
                f"up_scale_factor: found {self.encoder.up_scale_factor}, "
                f"expected {self.encoder.up_stride}, as up_stride"
            )
        if self.encoder.input_size != self.input_size:
            raise ValueError(
                f"the encoder takes {self.encoder.input_size} channels, "
                f"the token embedding gives {self.input_size}"
            )
        return self


class HiftConfig(_Strict):
    """The HiFT vocoder (neural source filter, ISTFT head), which no public file describes."""

    mel_bins: Positive = 80
    base_channels: Positive = 512
    f0_channels: Positive = 512
    nb_harmonics: Positive = 8
    sample_rate_hz: Many = 24_000
    upsample_rates: tuple[Positive, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[Positive, ...] = (16, 11, 7)
    istft_n_fft: Positive = 16
    istft_hop: Positive = 4
    resblock_kernel_sizes: tuple[Positive, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[Positive, ...], ...] = ((1, 3, 5),) * 3
    source_resblock_kernel_sizes: tuple[Positive, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[Positive, ...], ...] = ((1, 3, 5),) * 3
    lrelu_slope: float = 0.1
    nsf_alpha: float = 0.1
    nsf_sigma: float = 0.003
    voiced_threshold_hz: float = 10.0
    audio_limit: float = 0.99

    @model_validator(mode="after")
    def _lists_agree(self) -> "HiftConfig":
        per_stage = (
            "upsample_rates",
            "upsample_kernel_sizes",
            "source_resblock_kernel_sizes",
            "source_resblock_dilation_sizes",
        )
        for names in (per_stage, ("resblock_kernel_sizes", "resblock_dilation_sizes")):
            lengths = [len(getattr(self, name)) for name in names]
            if min(lengths) < 1 or len(set(lengths)) > 1:
                found = ", ".join(map("{}: {}".format, names, lengths))
                raise ValueError(f"found lists of lengths {found}; expected one length, 1 or more")
        if not self.base_channels >> len(self.upsample_rates):
            raise ValueError(
                f"base_channels: found {self.base_channels}, which {len(self.upsample_rates)} "
                "upsampling stages cannot halve"
            )
        return self

    @property
    def samples_per_frame(self) -> int:
        """Samples of sound for one mel frame."""
        return prod(self.upsample_rates) * self.istft_hop


class Token2wavConfig(_Strict):
    """A whole token2wav model; `codebook` names the codec whose tokens it takes."""

    codebook: str = "s3-v2"
    flow: FlowConfig = FlowConfig()
    hift: HiftConfig = HiftConfig()
    token_rate_hz: Positive = 25
    reopens_prompt: bool = False
    """Whether the last `look_ahead` tokens of a voice's clip are solved once more with the first
    chunk of each utterance, to whose tokens they look ahead. If not, the clip's own first tokens
    stand for those that come, as in Step-Audio 2: an utterance's first 60 ms are then blurred."""

    @model_validator(mode="after")
    def _rates_agree(self) -> "Token2wavConfig":
        if self.samples_per_token * self.token_rate_hz != self.hift.sample_rate_hz:
            raise ValueError(
                f"{self.token_rate_hz} tokens/s of {self.samples_per_token} samples each are not "
                f"{self.hift.sample_rate_hz} samples/s"
            )
        if self.hift.mel_bins != self.flow.output_size:
            raise ValueError(
                f"the flow gives {self.flow.output_size} mel bins, HiFT takes {self.hift.mel_bins}"
            )
        return self

    @cached_property
    def frames_per_token(self) -> int:
        """Mel frames for one token."""
        return self.flow.encoder.up_stride

    @cached_property
    def samples_per_token(self) -> int:
        """Samples of sound for one token."""
        return self.frames_per_token * self.hift.samples_per_frame

    @cached_property
    def look_ahead(self) -> int:
        """Tokens that a chunk needs beyond those it speaks."""
        return self.flow.encoder.pre_lookahead_len


FULL = Token2wavConfig()

TINY = Token2wavConfig(
    flow=FlowConfig(
        input_size=64,
        encoder=EncoderConfig(
            input_size=64,
            output_size=64,
            num_blocks=2,
            num_up_blocks=1,
            attention_heads=2,
            linear_units=128,
        ),
        decoder=SolverConfig(
            estimator=EstimatorConfig(depth=2, num_heads=2, head_dim=32, hidden_size=64)
        ),
    ),
    hift=HiftConfig(base_channels=64, f0_channels=64),
)
"""Under a million parameters: for tests, and for engines to be tried on any machine."""

EMBEDDED = Token2wavConfig(
    codebook="duologue-25",
    flow=FlowConfig(
        input_size=128,
        encoder=EncoderConfig(
            input_size=128,
            output_size=256,
            num_blocks=2,
            num_up_blocks=2,
            attention_heads=4,
            linear_units=512,
        ),
        decoder=SolverConfig(
            n_timesteps=6,
            inference_cfg_rate=1.5,
            estimator=EstimatorConfig(
                mlp_ratio=2.0, depth=6, num_heads=4, head_dim=56, hidden_size=224
            ),
        ),
    ),
    hift=HiftConfig(base_channels=192, f0_channels=160),
    reopens_prompt=True,
)
"""The embedded voice's: about 14 million parameters, made by `duologue.training`."""

PRESETS = {"full": FULL, "tiny": TINY, "embedded": EMBEDDED}

_TAGS = (
    "!new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec",
    "!new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2",
    "!new:cosyvoice2.flow.flow_matching.CausalConditionalCFM",
    "!new:cosyvoice2.flow.decoder_dit.DiT",
)


class _FlowLoader(yaml.SafeLoader):
    """Knows four tags as plain mappings; any other tag is an error, and nothing is constructed."""


def _mapping(loader: yaml.SafeLoader, node: yaml.Node) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.constructor.ConstructorError(
            None, None, f"expected a mapping after {node.tag}", node.start_mark
        )
    return loader.construct_mapping(node, deep=True)  # pyright: ignore[reportReturnType]


for _tag in _TAGS:
    _FlowLoader.add_constructor(_tag, _mapping)


def load_flow_yaml(path: Path) -> FlowConfig:
    """Read the public `flow.yaml`, whose tags name classes to construct, without constructing any.

    Raises:
        ModelError: no such file.
        ConfigError: not YAML, an unknown tag or key, or sizes that do not fit each other.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error}); expected a flow.yaml") from error
    try:
        # The loader is a SafeLoader with four more tags.
        data = yaml.load(content, Loader=_FlowLoader)
    # Beside YAMLError it lets out what its constructors and Python's stack raise.
    except Exception as error:
        raise ConfigError(f"{path} is not a flow.yaml that can be read: {error}") from error
    if not isinstance(data, dict) or set(data) != {"flow"}:
        raise ConfigError(f"{path}: expected the one key 'flow' at the top")
    try:
        return FlowConfig.model_validate(data["flow"])
    except ValidationError as error:
        raise ConfigError(f"{path} is not a flow.yaml of a known kind: {error}") from error
