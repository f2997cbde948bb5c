"""Sizes of a model, and the public flow.yaml."""

import pytest
from pydantic import ValidationError

from duologue.errors import ConfigError, ModelError
from duologue.token2wav.config import (
    FULL,
    PRESETS,
    EncoderConfig,
    EstimatorConfig,
    FlowConfig,
    HiftConfig,
    SolverConfig,
    Token2wavConfig,
    load_flow_yaml,
)

FLOW_YAML = """\
flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec
  input_size: 512
  output_size: 80
  spk_embed_dim: 192
  output_type: mel
  vocab_size: 6561
  encoder: !new:cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2
    input_size: 512
    output_size: 512
    input_layer: linear
    pre_lookahead_len: 3
    num_blocks: 6
    num_up_blocks: 4
    up_stride: 2
    up_scale_factor: 2
    attention_heads: 8
    pos_enc_layer_type: rel_pos_espnet
    selfattention_layer_type: rel_selfattn
    key_bias: true
    linear_units: 2048
    dropout_rate: 0.1
    positional_dropout_rate: 0.1
    attention_dropout_rate: 0.1
    normalize_before: true
  decoder: !new:cosyvoice2.flow.flow_matching.CausalConditionalCFM
    inference_cfg_rate: 0.7
    estimator: !new:cosyvoice2.flow.decoder_dit.DiT
      in_channels: 320
      out_channels: 80
      mlp_ratio: 4.0
      depth: 16
      num_heads: 8
      head_dim: 64
      hidden_size: 512
"""


@pytest.fixture
def read(tmp_path):
    def load(text: str) -> FlowConfig:
        path = tmp_path / "flow.yaml"
        path.write_text(text, encoding="utf-8")
        return load_flow_yaml(path)

    return load


def test_public_flow_yaml_is_the_default(read):
    assert read(FLOW_YAML) == FULL.flow


def test_sizes_are_taken_from_the_file(read):
    config = read(
        FLOW_YAML.replace("depth: 16", "depth: 7").replace("num_blocks: 6", "num_blocks: 2")
    )
    assert config.decoder.estimator.depth == 7
    assert config.encoder.num_blocks == 2


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("!new:cosyvoice2.flow.decoder_dit.DiT", "!new:cosyvoice2.flow.decoder_dit.Net", "Net"),
        ("depth: 16", "depth: 16\n      window: 3", "window"),
        ("depth: 16", "depth: 0", "depth"),
        ("depth: 16", "depth: deep", "depth"),
        ("in_channels: 320", "in_channels: 240", "320"),
        ("    input_size: 512", "    input_size: 256", "256"),
        ("key_bias: true", "key_bias: false", "key_bias"),
        ("flow: ", "vocoder: ", "'flow'"),
        ("flow: !new:cosyvoice2.flow.flow.CausalMaskedDiffWithXvec", "flow: [", "flow.yaml"),
    ],
)
def test_other_files_are_refused_by_name(read, old, new, named):
    assert old in FLOW_YAML
    with pytest.raises(ConfigError, match=named):
        read(FLOW_YAML.replace(old, new, 1))


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir", "!new:os.mkdir", "!apply:os.mkdir", "!name:os.mkdir"]
)
def test_tags_run_nothing(read, tmp_path, tag):
    with pytest.raises(ConfigError):
        read(f"flow: {tag} [{tmp_path / 'made'}]")
    assert not (tmp_path / "made").exists()


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"expected a flow\.yaml"):
        load_flow_yaml(tmp_path / "flow.yaml")


@pytest.mark.parametrize("config", PRESETS.values(), ids=PRESETS)
def test_presets_survive_json(config):
    assert Token2wavConfig.model_validate_json(config.model_dump_json()) == config


def test_rates():
    assert FULL.frames_per_token == 2
    assert FULL.samples_per_token == 960
    assert FULL.look_ahead == 3


def test_parts_that_do_not_fit_each_other():
    with pytest.raises(ValidationError, match="mel bins"):
        Token2wavConfig(hift=HiftConfig(mel_bins=100))
    with pytest.raises(ValidationError, match="samples/s"):
        Token2wavConfig(token_rate_hz=50)
    with pytest.raises(ValidationError, match="up_scale_factor: found 2, expected 4"):
        Token2wavConfig(flow=FlowConfig(encoder=EncoderConfig(up_stride=4)))


@pytest.mark.parametrize(
    "content",
    [b"flow: \xff\xfe\xe9", b"flow: " + b"[" * 5000, b"flow: !!bool x", b"flow: !!int ''", b"\0"],
)
def test_what_is_no_yaml(tmp_path, content):
    path = tmp_path / "flow.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not a flow\.yaml that can be read"):
        load_flow_yaml(path)


@pytest.mark.parametrize(
    ("part", "changes", "named"),
    [
        (HiftConfig, {"resblock_kernel_sizes": (3, 7)}, "resblock_kernel_sizes: 2, resblock_dil"),
        (HiftConfig, {"source_resblock_kernel_sizes": (7, 7)}, "source_resblock_kernel_sizes: 2"),
        (HiftConfig, {"source_resblock_dilation_sizes": ((1,),)}, "dilation_sizes: 1"),
        (HiftConfig, {"upsample_rates": (8, 5)}, "upsample_rates: 2, upsample_kernel_sizes: 3"),
        (
            HiftConfig,
            {"resblock_kernel_sizes": (), "resblock_dilation_sizes": ()},
            "resblock_kernel_sizes: 0",
        ),
        (HiftConfig, {"base_channels": 4}, "base_channels: found 4"),
        (HiftConfig, {"nsf_sigma": float("nan")}, "nsf_sigma"),
        (EstimatorConfig, {"mlp_ratio": 0.0}, "mlp_ratio"),
        (EstimatorConfig, {"mlp_ratio": 1e9}, "mlp_ratio"),
        (EstimatorConfig, {"depth": 10**13}, "depth"),
        (SolverConfig, {"inference_cfg_rate": float("inf")}, "inference_cfg_rate"),
        (FlowConfig, {"vocab_size": 10**13}, "vocab_size"),
    ],
)
def test_sizes_that_no_model_has(part, changes, named):
    with pytest.raises(ValidationError, match=named):
        part(**changes)
