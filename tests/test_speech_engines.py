"""The embedded ASR and voice: windows, token caps, word times, the phonemiser's process."""

import json
import subprocess
import sys
from types import SimpleNamespace

import jiwer
import numpy as np
import psutil
import pytest

from duologue.asr.whisper import MAX_SPEECH_S, Whisper, pieces
from duologue.audio.pcm import from_int16_bytes, resample, to_int16_bytes
from duologue.audio.whisper_mel import log_mel
from duologue.errors import EngineError, ModelError
from duologue.models import ensure
from duologue.tts.phonemes import Phonemizer
from duologue.tts.piper import MOST_IDS, PiperVoice, runs
from duologue.tts.words import Word, spread, word_spans

NORMAL = jiwer.Compose(
    [
        jiwer.ToLowerCase(),
        jiwer.RemovePunctuation(),
        jiwer.RemoveMultipleSpaces(),
        jiwer.Strip(),
        jiwer.ReduceToListOfListOfWords(),
    ]
)
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "We went to the market, and then we came home again.",
    "Please remember to close the window before you leave the house.",
]


def test_mel_agrees_with_an_independent_reference():
    """Each band against a direct DFT and the filter's closed form, at a few frames."""
    rng = np.random.default_rng(3)
    samples = rng.normal(0, 0.1, 16_000).astype(np.float32)
    mel = log_mel(samples, 100)
    padded = np.pad(samples, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    hz = np.arange(201) * 40.0
    points = np.array([_slaney_hz(m) for m in np.linspace(0, _slaney_mel(8000.0), 82)])
    for frame in (0, 17, 99):
        part = padded[frame * 160 : frame * 160 + 400] * window
        dft = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400) @ part
        for band in (0, 1, 30, 79):
            low, mid, high = points[band : band + 3]
            weight = np.clip(np.minimum((hz - low) / (mid - low), (high - hz) / (high - mid)), 0, 1)
            energy = (weight * 2 / (high - low) * np.abs(dft) ** 2).sum()
            assert mel[band, frame] * 4 - 4 == pytest.approx(np.log10(energy), abs=2e-3)


def _slaney_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)


def _slaney_hz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * np.exp((mel - 15) * np.log(6.4) / 27)


@pytest.mark.parametrize("text", SENTENCES)
def test_speech_survives_the_round_trip(whisper, say, text):
    transcript = whisper.transcribe(say(text))
    assert transcript.credible
    assert jiwer.wer(text, transcript.text, NORMAL, NORMAL) <= 0.15


@pytest.mark.parametrize("level", [0.0, 0.001, 0.02])
def test_noise_is_not_believed(whisper, level):
    noise = np.random.default_rng(0).normal(0, level, 48_000).astype(np.float32)
    assert not whisper.transcribe(noise).credible


def test_long_audio_is_cut_in_quiet_places_and_nothing_is_lost(whisper, say):
    pause = np.zeros(8_000, np.float32)
    long = np.concatenate([part for text in SENTENCES * 5 for part in (say(text), pause)])
    assert len(long) > 40 * 16_000
    parts = list(pieces(long))
    assert np.array_equal(np.concatenate(parts), long)
    assert all(len(part) <= MAX_SPEECH_S * 16_000 for part in parts)
    assert all(np.abs(part[-50:]).max() < 0.02 for part in parts)
    wer = jiwer.wer(" ".join(SENTENCES * 5), whisper.transcribe(long).text, NORMAL, NORMAL)
    assert wer <= 0.15


def test_words_are_said_by_the_time_the_voice_says_so(whisper, piper):
    """In the samples up to a word's end, Whisper hears the words up to it, one off at most."""
    text = "London Paris Berlin Tokyo Madrid Boston Chicago Dublin Sydney Moscow Athens."
    speech = piper.synthesize(text)
    assert len(speech.words) == len(text.split())
    assert speech.words[-1].end_sample <= len(speech.samples)
    for word in speech.words[3::3]:
        heard = whisper.transcribe(
            resample(speech.samples[: word.end_sample], piper.rate_hz, 16_000)
        ).text
        assert abs(len(heard.split()) - len(text[: word.end].split())) <= 1, (heard, word)


def test_the_voice_is_in_range_and_ends_in_silence(piper):
    samples = piper.synthesize("Hello, this is a test!").samples
    assert 0.1 < np.abs(samples).max() <= 1.0
    assert np.abs(samples[-200:]).max() < 0.05
    assert len(piper.synthesize("").samples) == 0


def test_a_text_of_any_length_is_said_in_short_runs(piper, monkeypatch):
    ran = []

    def run(outputs, arrays):
        ran.append(arrays["input"][0].tolist())
        return session.run(outputs, arrays)

    session = piper._session
    monkeypatch.setattr(piper, "_session", SimpleNamespace(run=run))
    text = "Sixteen plus or minus, or " * 24 + "o" * 400 + ", or done."
    speech = piper.synthesize(text)
    ids, ends = piper._phoneme_ids(text)
    assert len(ids) > 3 * MOST_IDS
    assert max(map(len, ran)) <= MOST_IDS
    assert [one for run in ran for one in run[2:-1]] == ids[2:-1]
    assert all((run[:2], run[-1:]) == (ids[:2], ids[-1:]) for run in ran)
    at = [word.end_sample for word in speech.words]
    assert len(at) == len(text.split()) and at == sorted(at)
    # A comma's pause follows the last word but one, and speech takes its time.
    assert 0.9 * len(speech.samples) < at[-1] <= len(speech.samples)
    assert len(speech.samples) > 0.02 * len(ids) * piper.rate_hz / 2


def test_runs_end_between_words_where_they_can():
    word = [7, 0] * 100
    ids = [1, 0, *(word + [3, 0]) * 3, *word, *word, *word, 4, 0, 3, 0, 2]
    ends = [202, 404, 606, 1208]
    assert [(len(run), inside) for run, inside in runs(ids, ends)] == [
        (407, [202, 404]),
        (205, [202]),
        (500, []),
        (110, [105]),
    ]
    assert list(runs(ids[:204] + [2], [202])) == [(ids[:204] + [2], [202])]


def test_a_voice_keeps_no_memory_for_what_it_said_before():
    voice = PiperVoice(ensure("piper-en_US-joe-medium"))
    try:
        text = "What the people over there had never really known about their house. " * 2
        voice.synthesize(text)
        before = psutil.Process().memory_info().rss
        voice.synthesize(text)
        assert psutil.Process().memory_info().rss - before < 30e6
    finally:
        voice.close()


def test_no_letter_of_a_long_word_is_lost():
    """espeak-ng itself drops what comes behind 160 bytes of a word."""
    phonemizer = Phonemizer("en-us")
    try:
        [(once, _)], [(thrice, _)] = (phonemizer.clauses("mo" * count) for count in (40, 120))
        assert thrice.split() == once.split() * 3
    finally:
        phonemizer.close()


def test_speed_changes_the_length(piper):
    fast = PiperVoice(ensure("piper-en_US-joe-medium"), speed=1.6, lively=False)
    try:
        text = "This sentence is spoken at two speeds."
        ratio = len(piper.synthesize(text).samples) / len(fast.synthesize(text).samples)
        assert 1.3 < ratio < 1.9
    finally:
        fast.close()


def test_spread_shares_time_when_counts_differ():
    assert spread("one two", [5, 9]) == [Word(0, 3, 5), Word(4, 7, 9)]
    words = spread("it is 1999 now", [10, 20, 30, 40, 50, 60])
    assert [word.end_sample for word in words] == sorted(word.end_sample for word in words)
    assert words[-1].end_sample == 60
    assert spread("", [5]) == spread("word", []) == []
    assert word_spans("你好 world") == [(0, 1), (1, 2), (3, 8)]


def test_pcm_round_trip_clips_and_ignores_an_odd_byte():
    samples = np.array([0.0, 0.5, -1.0, 2.0], np.float32)
    back = from_int16_bytes(to_int16_bytes(samples) + b"\x01")
    assert back == pytest.approx([0.0, 0.5, -1.0, 1.0], abs=1e-4)


@pytest.mark.parametrize("to_hz", [8_000, 22_050, 24_000, 48_000])
def test_resampling_keeps_the_pitch(to_hz):
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32)
    moved = resample(tone, 16_000, to_hz)
    assert len(moved) == to_hz
    peak = np.argmax(np.abs(np.fft.rfft(moved)))
    assert peak == pytest.approx(440, rel=0.005)


def test_the_phonemiser_comes_back_after_it_was_killed():
    phonemizer = Phonemizer("en-us")
    try:
        first = phonemizer.clauses("Hello there, friend. How are you?")
        assert [mark for _, mark in first] == [",", ".", "?"]
        phonemizer._process.kill()
        phonemizer._process.wait()
        assert phonemizer.clauses("Hello there, friend. How are you?") == first
    finally:
        phonemizer.close()


def test_a_voice_that_espeak_does_not_have_is_named():
    phonemizer = Phonemizer("nowhere")
    try:
        with pytest.raises(EngineError, match="no voice 'nowhere'"):
            phonemizer.clauses("x")
    finally:
        phonemizer.close()


def test_gpl_code_stays_in_its_own_process(piper):
    script = (
        "import sys, json; import duologue.tts.piper; from duologue.tts.phonemes import Phonemizer;"
        "p = Phonemizer('en-us'); p.clauses('hi'); p.close();"
        "maps = open('/proc/self/maps').read();"
        "print(json.dumps(['espeak' in maps, 'espeakng_loader' in sys.modules]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [False, False]


def test_broken_models_are_named(tmp_path):
    with pytest.raises(ModelError, match="expected one voice"):
        PiperVoice(tmp_path)
    (tmp_path / "v.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"v\.onnx"):
        PiperVoice(tmp_path)
    with pytest.raises(ModelError, match="not a CTranslate2 Whisper model"):
        Whisper(tmp_path)
