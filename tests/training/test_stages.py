"""Each stage on made-up speech: what it trains equals what the product runs, and it learns."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from duologue.errors import EngineError, ModelError
from duologue.models import ensure
from duologue.talker.config import END, FIRST_CODE, SPEECH, TalkerConfig, text_ids
from duologue.talker.model import Talker
from duologue.token2wav.config import TINY
from duologue.token2wav.flow import EncoderOffline, EstimatorOffline, Flow
from duologue.token2wav.weights import random_weights
from duologue.training.curves import draw_curves
from duologue.training.flow import FlowTask, chunk_bias, encode, estimate, train_flow
from duologue.training.loop import Settings
from duologue.training.sounds import write_sounds
from duologue.training.talker import (
    NOTHING,
    Network,
    TalkerTask,
    _losses,
    example,
    pack,
    train_talker,
)
from duologue.training.tokenizer import CODES, Tokenizer, TokenizerTask, train_tokenizer
from duologue.training.tokenizer import encode as encode_speech
from tests.training.made import CPU, made_speech, waiting_calls

SMALL = TalkerConfig(hidden_size=48, intermediate_size=64, layers=2, heads=2)
EVERYTHING = torch.zeros(1, 1, 1, 1)


@pytest.fixture(scope="module")
def flow() -> Flow:
    return random_weights(TINY, 0).flow


def figures(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_teacher_laughs_and_sighs_in_codes(tmp_path):
    torch.manual_seed(0)
    tokenizer = Tokenizer()
    save_file(tokenizer.state_dict(), tmp_path / "tokenizer.safetensors")
    teacher = ensure("piper-en_US-joe-medium")
    codes = json.loads(write_sounds(tmp_path, teacher).read_text())
    assert list(codes) == ["laugh", "sigh"]
    for said in codes.values():
        # About a second.
        assert 12 < len(said) < 50 and all(0 <= code < CODES for code in said)
        assert len(set(said)) > 5
    (tmp_path / "tokenizer.safetensors").unlink()
    with pytest.raises(ModelError, match="run its stage first"):
        write_sounds(tmp_path, teacher)


def test_the_encoder_is_trained_as_it_runs(flow):
    tokens = torch.randint(0, 6561, (2, 23))
    [mu] = EncoderOffline(flow)(tokens[:, :20], torch.ones(2, 20))
    valid = (torch.arange(23) < 20).float().expand(2, -1)
    hidden = encode(flow.encoder, flow.input_embedding(tokens), valid, (EVERYTHING, EVERYTHING))
    torch.testing.assert_close(flow.encoder_proj(hidden), mu, atol=1e-5, rtol=1e-5)


def test_the_estimator_is_trained_as_it_runs(flow):
    x, mu, cond = torch.randn(3, 2, 30, 80)
    spk, t = torch.randn(2, 80), torch.tensor([0.3])
    [runs] = EstimatorOffline(flow)(x, mu, spk, cond, t, torch.ones(2, 30))
    trains = estimate(flow.estimator, x, mu, spk, cond, t.expand(2), EVERYTHING)
    torch.testing.assert_close(trains, runs, atol=1e-4, rtol=1e-4)


def test_chunks_hide_what_comes_later_and_what_is_far():
    bias = chunk_bias(8, torch.tensor([3]), torch.tensor([1]), torch.tensor([2]))
    seen = (bias[0, 0] == 0).int().tolist()
    assert seen == [
        *2 * [[1, 1, 0, 0, 0, 0, 0, 0]],
        *3 * [[1, 1, 1, 1, 1, 0, 0, 0]],
        *3 * [[0, 0, 0, 1, 1, 1, 1, 1]],
    ]


def test_later_tokens_do_not_change_a_chunk(flow):
    tokens = torch.randint(0, 6561, (1, 43))
    other = tokens.clone()
    other[:, 23:] = (other[:, 23:] + 1) % 6561
    chunk = torch.tensor([10]), torch.tensor([0]), torch.tensor([100])
    bias = chunk_bias(40, *chunk), chunk_bias(80, *(2 * part for part in chunk))
    one, two = (
        encode(flow.encoder, flow.input_embedding(t), torch.ones(1, 43), bias)
        for t in (tokens, other)
    )
    # A chunk looks ahead by three tokens.
    torch.testing.assert_close(one[:, :40], two[:, :40], atol=1e-5, rtol=1e-5)
    assert (one[:, 40:] - two[:, 40:]).abs().max() > 1e-2


def test_the_tokenizer_learns_and_writes_codes(tmp_path):
    speech = made_speech()
    (tmp_path / "speech").mkdir()
    path = train_tokenizer(speech, Settings(tmp_path, 5, CPU, max_steps=30), batch=8, gate=0.0)
    lines = figures(tmp_path / "tokenizer.log.jsonl")
    assert lines[-1]["phone"] < 5.0 < np.log(256)
    assert 0 <= lines[-1]["dev_accuracy"] <= 1
    codes = np.load(tmp_path / "speech" / "codes.npy")
    assert codes.shape == (len(speech.mel) // 2,) and codes.min() >= 0 and codes.max() < CODES
    fresh = Tokenizer().eval()
    fresh.load_state_dict(load_file(path))
    assert np.array_equal(encode_speech(fresh, speech), codes)
    assert np.array_equal(encode_speech(fresh, speech, frames=200), codes)


def test_a_tokenizer_that_tells_too_little_makes_no_codes(tmp_path):
    with pytest.raises(EngineError, match="expected 80%"):
        train_tokenizer(made_speech(), Settings(tmp_path, 5, CPU, max_steps=1), batch=2)
    assert not (tmp_path / "speech").exists()


def test_the_flow_learns_and_loads_strictly(tmp_path):
    settings = Settings(tmp_path, 5, CPU, max_steps=60)
    path = train_flow(made_speech(), settings, TINY, batch=4)
    lines = figures(tmp_path / "flow.log.jsonl")
    assert lines[-1]["velocity"] < 2.8
    Flow(TINY.flow).load_state_dict(load_file(path))


def test_no_loss_waits_for_the_device(tmp_path):
    speech, settings = made_speech(), Settings(tmp_path, 1, CPU)
    tasks = (
        TokenizerTask(speech, settings, batch=2),
        FlowTask(speech, settings, TINY, batch=2),
        TalkerTask(speech, settings, SMALL, batch=2),
    )
    for task in tasks:
        assert not waiting_calls(lambda task=task: task.loss()[0])


def test_an_example_asks_for_codes_and_phonemes():
    speech = made_speech()
    codes, phones = speech.codes.numpy(), speech.phones.numpy()
    ids, labels = example(speech, codes, phones, 1, "No!")
    low, high = int(speech.starts[1]), int(speech.starts[2])
    prompt = text_ids("No!")
    spoken = codes[low // 2 : high // 2].astype(int) + FIRST_CODE
    assert ids.tolist() == [*prompt, *spoken, END] and prompt[-1] == SPEECH
    first = len(prompt) - 1
    assert (labels[:first] == NOTHING).all()
    assert labels[first:, 0].tolist() == [*spoken, END, NOTHING]
    assert labels[first:-2, 1:].ravel().tolist() == phones[low:high].tolist()


def test_packed_utterances_do_not_see_each_other():
    speech = made_speech()
    codes, phones = speech.codes.numpy(), speech.phones.numpy()
    examples = [example(speech, codes, phones, row, speech.texts[row]) for row in range(12)]
    torch.manual_seed(0)
    network = Network(SMALL).eval()

    def total(of, order) -> torch.Tensor:
        ids, labels, document = (torch.from_numpy(a).long() for a in pack(of, order))
        code, _ = _losses(network, ids, labels, document, 0.0)
        return code * (labels[..., 0] != NOTHING).sum()

    together = total(examples, np.arange(12))
    alone = sum(total([one], np.arange(1)) for one in examples)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-3)


def test_the_talker_learns_and_loads_strictly(tmp_path):
    settings = Settings(tmp_path, 5, CPU, max_steps=60)
    path = train_talker(made_speech(), settings, SMALL, batch=2)
    lines = figures(tmp_path / "talker.log.jsonl")
    assert lines[-1]["code"] < 8.0 and "dev_phone_accuracy" in lines[-1]
    Talker(SMALL).load_state_dict(load_file(path))
    draw_curves(tmp_path, tmp_path / "curves.svg")
    assert "dev_code" in (tmp_path / "curves.svg").read_text()


def test_an_epoch_packs_anew(tmp_path):
    stage = TalkerTask(made_speech(), Settings(tmp_path, 1, CPU), SMALL, batch=2)
    before = stage._train[0].clone()
    for _ in range(len(before)):
        stage.after_step()
    assert before.shape == stage._train[0].shape and not torch.equal(before, stage._train[0])
    assert sorted(before.flatten().tolist()) == sorted(stage._train[0].flatten().tolist())


def test_the_cache_of_the_talker_changes_nothing():
    torch.manual_seed(1)
    model = Talker(SMALL).eval()
    ids = torch.randint(0, SMALL.vocab_size, (1, 12))
    hidden, _ = model.hidden(ids, None)
    past = torch.zeros(1, SMALL.layers, 2, SMALL.heads, 0, SMALL.head_size)
    for i in range(12):
        logits, past = model(ids[:, i : i + 1], past)
        torch.testing.assert_close(logits[0], model.head(hidden)[0, i], atol=1e-4, rtol=1e-4)
