"""Public reports, groups E and F1, on the whole way of speech tokens to sound (tiny model).

E1 QwenAudio/CosyVoice issues 895, 1740 and 1919: noise at chunk borders and at the end. E3
pipecat-ai/pipecat#4952, 5090: half a sample at the end of a piece. E4 pipecat-ai/pipecat#4993: a
tail shorter than a chunk. E6 pipecat-ai/pipecat#2045, 3622: mixed rates. E9 Step-Audio-EditX issue
66: stray tokens. E10: an utterance longer than any table of positions. F1: sessions that come and
go leave nothing behind.
"""

import gc
import threading
import tracemalloc

import numpy as np
import pytest
import soxr

from duologue.audio.pcm import to_int16_bytes
from duologue.engines.torch_model import engine_of
from duologue.errors import InputError
from duologue.token2wav.config import TINY
from duologue.token2wav.pipeline import EngineSettings, Token2wav
from duologue.token2wav.stream import Schedule
from duologue.token2wav.weights import load_preset
from tests.token2wav.test_pipeline import speech, voice

TOKEN = TINY.samples_per_token


@pytest.fixture(scope="module")
def model() -> Token2wav:
    whole = load_preset("tiny", 3)
    decoder = TINY.flow.decoder.model_copy(update={"n_timesteps": 2})
    flow = TINY.flow.model_copy(update={"decoder": decoder})
    few_steps = whole._replace(config=TINY.model_copy(update={"flow": flow}))
    return engine_of(few_steps, EngineSettings(sessions=2, window=20))


def say(model: Token2wav, tokens: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    with model.utterance(voice(1), 1, Schedule(sizes)) as utterance:
        return np.concatenate([utterance.push(tokens), utterance.finish()])


def fall(samples: np.ndarray) -> float:
    """Level of the last token's sound, against that of the three before."""
    tail, before = samples[-TOKEN:], samples[-4 * TOKEN : -TOKEN]
    return float(np.sqrt((tail**2).mean() / (before**2).mean()))


def test_e1_no_jump_at_a_border_and_no_noise_at_the_end(model):
    tokens = speech(1, 40)
    samples = say(model, tokens, (5,))
    jumps = np.abs(np.diff(samples))
    borders = np.arange(5 * TOKEN, len(samples), 5 * TOKEN) - model.vocoder.hold_back * 480
    at_borders = np.concatenate([jumps[b - 2 : b + 2] for b in borders if b > 2])
    assert at_borders.max() <= np.percentile(jumps, 99.9)
    [whole] = model.offline([(tokens, voice(1), 1)])
    assert fall(samples) == pytest.approx(fall(whole), rel=0.5)


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 24_000, 44_100])
def test_e3_every_piece_is_of_whole_samples(model, rate_hz):
    """Whatever comes out of one token more: the bytes of the pieces are those of the whole."""
    tokens = speech(1, 12)
    stream = soxr.ResampleStream(24_000, rate_hz, 1)
    with model.utterance(voice(1), 1, Schedule((1, 2))) as utterance:
        made = [utterance.push(token) for token in tokens[:, None]]
        made.append(utterance.finish())
    last = len(made) - 1
    pieces = [
        to_int16_bytes(stream.resample_chunk(part, last=place == last))
        for place, part in enumerate(made)
    ]
    assert {len(piece) % 2 for piece in pieces} == {0}
    whole = soxr.ResampleStream(24_000, rate_hz, 1).resample_chunk(np.concatenate(made), last=True)
    assert b"".join(pieces) == to_int16_bytes(whole)
    assert len(whole) == pytest.approx(12 * TOKEN * rate_hz / 24_000, abs=1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 8, 9])
def test_e4_a_tail_shorter_than_a_chunk_is_spoken(model, count):
    assert len(say(model, speech(1, count), (5,))) == count * TOKEN


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_e6_another_rate_keeps_length_and_pitch(rate_hz):
    """As the service resamples a stream: in pieces, with one state."""
    tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32)
    stream = soxr.ResampleStream(24_000, rate_hz, 1)
    pieces = [
        stream.resample_chunk(piece, last=start + 2400 >= len(tone))
        for start, piece in ((i, tone[i : i + 2400]) for i in range(0, len(tone), 2400))
    ]
    samples = np.concatenate(pieces)
    assert abs(len(samples) - rate_hz) <= 2
    middle = samples[len(samples) // 10 : -len(samples) // 10]
    crossings = np.flatnonzero((middle[:-1] < 0) & (middle[1:] >= 0))
    pitch_hz = (len(crossings) - 1) * rate_hz / (crossings[-1] - crossings[0])
    assert pitch_hz == pytest.approx(440, rel=0.005)


@pytest.mark.parametrize("at", [0, 9])
@pytest.mark.parametrize("stray", [-1, 6561, 151_936])
def test_e9_stray_tokens_are_refused_and_never_become_noise(model, stray, at):
    tokens = speech(1, 14)
    with model.utterance(voice(1), 1, Schedule((5,))) as utterance:
        samples = utterance.push(tokens[:at])
        with pytest.raises(InputError, match=f"found {stray}"):
            utterance.push(np.array([tokens[at], stray]))
        samples = np.concatenate([samples, utterance.push(tokens[at:]), utterance.finish()])
    np.testing.assert_allclose(samples, say(model, tokens, (5,)), atol=1e-6)


def test_e10_a_minute_in_one_stream_neither_fails_nor_drifts(model):
    """The window forgets what is long past: the same tokens, late, sound as they do early."""
    once = speech(1, 25)
    samples = say(model, np.tile(once, 60), (25,))
    assert len(samples) == 60 * 25 * TOKEN
    seconds = samples.reshape(60, -1)
    levels = np.sqrt((seconds**2).mean(1))
    assert np.isfinite(samples).all()
    assert levels[2:].max() < 1.3 * levels[2:].min()


def test_f1_fifty_sessions_leave_nothing_behind(model):
    tokens = speech(1, 9)

    def cycle(count: int) -> None:
        for index in range(count):
            with model.utterance(voice(1), index, Schedule((5,))) as utterance:
                utterance.push(tokens)
                if index % 2:
                    utterance.finish()

    cycle(4)
    gc.collect()
    tracemalloc.start()
    cycle(5)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    cycle(45)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000
    assert not model.flow._slots.generations and not model.vocoder._slots.generations


def test_f1_batchers_leave_no_thread_behind(model):
    before = threading.active_count()
    for index in range(10):
        with model.batcher() as batcher:
            batcher.open(voice(1), index, print).push(speech(1, 3))
    assert threading.active_count() == before
