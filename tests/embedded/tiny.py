"""Models of the embedded voice's kind, as small as their graphs allow."""

from functools import cache

import numpy as np
import torch

from duologue.talker.config import TalkerConfig
from duologue.talker.model import Talker
from duologue.token2wav.config import (
    EncoderConfig,
    EstimatorConfig,
    FlowConfig,
    HiftConfig,
    SolverConfig,
    Token2wavConfig,
)
from duologue.token2wav.weights import Model, random_weights
from duologue.training.pack import Speaker

TALKER = TalkerConfig(hidden_size=96, intermediate_size=64, layers=1, heads=2, max_positions=256)
DECODER = Token2wavConfig(
    codebook="duologue-25",
    flow=FlowConfig(
        input_size=32,
        encoder=EncoderConfig(
            input_size=32,
            output_size=32,
            num_blocks=1,
            num_up_blocks=1,
            attention_heads=2,
            linear_units=64,
        ),
        decoder=SolverConfig(
            n_timesteps=2,
            estimator=EstimatorConfig(depth=1, num_heads=2, head_dim=32, hidden_size=64),
        ),
    ),
    hift=HiftConfig(
        base_channels=32,
        f0_channels=32,
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1,),),
        source_resblock_kernel_sizes=(3, 3, 3),
        source_resblock_dilation_sizes=((1,),) * 3,
    ),
)
SOUNDS = {"laugh": [1, 2, 3], "sigh": [4, 5]}
CARD = "# A tiny voice\n"
_rng = np.random.default_rng(0)
SPEAKER = Speaker(
    name="nobody",
    tokens=_rng.integers(0, DECODER.flow.vocab_size, 8, dtype=np.int32),
    mel=_rng.standard_normal((16, 80)).astype(np.float32),
    embedding=_rng.standard_normal(192).astype(np.float32),
)


@cache
def talker() -> Talker:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Talker(TALKER).eval().requires_grad_(False)
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.normal_(1, 0.1)
        # Logits that differ, so that what is drawn says something.
        model.get_parameter("model.embed_tokens.weight").normal_(std=0.1)
    return model


@cache
def decoder() -> Model:
    return random_weights(DECODER, 3)
