"""What is trained is what is streamed: cached sessions against one pass under a mask of chunks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from duologue.engines.torch_model import flow_graphs
from duologue.errors import InputError
from duologue.token2wav import noise
from duologue.token2wav.flow import Flow
from duologue.token2wav.graph_flow import GraphFlow
from duologue.token2wav.step import FlowWork
from duologue.training.flow import encode, estimate
from tests.token2wav.flows import AHEAD, BINS, FEW_STEPS, chunks_of, make_tokens, make_voice
from tests.token2wav.flows import speak as stream
from tests.token2wav.flows import tiny_flow as tiny

CONFIG = FEW_STEPS.model_copy(update={"reopens_prompt": True})
VOICE, TOKENS, SEED = make_voice(1), make_tokens(4, 20), 11
SPOKEN = [7, 9]


def bias_of(ends: list[int]) -> Tensor:
    """A place sees its own chunk and those before it."""
    of = torch.bucketize(torch.arange(ends[-1]), torch.tensor(ends), right=True)
    return ((of[:, None] < of[None]).float() * -1e4)[None, None]


@torch.no_grad()
def in_one_pass(flow: Flow, ends: list[int]) -> np.ndarray:
    """The mel of TOKENS behind VOICE, all at once."""
    solver = CONFIG.flow.decoder
    whole = torch.from_numpy(np.concatenate([VOICE.tokens, TOKENS])).long()
    valid = (torch.arange(len(whole) + AHEAD) < len(whole)).float()[None]
    x = flow.input_embedding(F.pad(whole, (0, AHEAD)))[None]
    frame_ends = [2 * end for end in ends]
    bias = bias_of(ends), bias_of(frame_ends)
    mu = flow.encoder_proj(encode(flow.encoder, x, valid, bias))
    prompt, frames = 2 * len(VOICE.tokens), 2 * len(TOKENS)
    cond = torch.zeros_like(mu)
    cond[0, :prompt] = torch.from_numpy(VOICE.mel)
    start = [
        noise.normal(0, noise.PROMPT, 0, prompt, BINS),
        noise.normal(SEED, noise.FLOW, 0, frames, BINS),
    ]
    y = torch.from_numpy(np.concatenate(start))[None]
    speaker = flow.speaker(torch.from_numpy(VOICE.embedding)[None])
    times = 1 - torch.cos(torch.linspace(0, torch.pi / 2, solver.n_timesteps + 1))
    for now, then in zip(times, times[1:], strict=False):
        given, free = (
            estimate(flow.estimator, y, mu * on, speaker * on, cond * on, now[None], bias[1])
            for on in (1, 0)
        )
        rate = solver.inference_cfg_rate
        y = y + (then - now) * ((1 + rate) * given - rate * free)
    return y[0, prompt:].numpy()


@pytest.mark.parametrize("reopens", [True, False])
def test_a_stream_is_one_pass_whose_chunks_see_what_comes_next(reopens):
    """Only where the prompt is reopened; else its end looks ahead to tokens that do not come."""
    flow = tiny()
    config = CONFIG if reopens else FEW_STEPS
    streamed = stream(GraphFlow(flow_graphs(flow, config), config), VOICE, SEED, TOKENS, SPOKEN)
    prompt = len(VOICE.tokens)
    ends = [prompt - AHEAD * reopens, prompt + 7, prompt + 16, prompt + 20]
    expected = in_one_pass(flow, ends)
    assert streamed.shape == expected.shape
    difference = np.abs(streamed - expected).max()
    assert difference < 1e-3 if reopens else difference > 1e-2


def test_sessions_of_a_reopened_prompt_do_not_feel_each_other():
    """Long enough that the window moves on from the prompt's end."""
    flow = GraphFlow(flow_graphs(tiny(), CONFIG), CONFIG, window=10)
    cases = [
        (VOICE, 1, make_tokens(1, 30), [3, 9, 5]),
        (make_voice(2, 6), 2, make_tokens(2, 25), [9, 6]),
    ]
    alone = [stream(flow, *case) for case in cases]
    handles = [flow.open(voice, seed) for voice, seed, *_ in cases]
    chunks = [chunks_of(tokens, spoken) for _, _, tokens, spoken in cases]
    mels: list[list[np.ndarray]] = [[], []]
    while any(chunks):
        for handle, waiting, mel in zip(handles, chunks, mels, strict=True):
            if waiting:
                part, final = waiting.pop(0)
                mel.extend(flow.step([FlowWork(handle, part, final)]))
    for whole, parts in zip(alone, mels, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_clip_that_is_all_lead_is_refused():
    flow = GraphFlow(flow_graphs(tiny(), CONFIG), CONFIG)
    with pytest.raises(InputError, match=f"found {AHEAD} tokens, expected at least {AHEAD + 1}"):
        flow.open(make_voice(1, AHEAD), 0)
