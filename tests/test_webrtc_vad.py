"""WebRTC's voice activity detector inside pipecat."""

import sys
from collections.abc import Callable

import numpy as np
import pytest
from pipecat.audio.vad.vad_analyzer import VADParams, VADState
from pipecat.frames.frames import (
    InputAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.tests.utils import run_test

from duologue.audio.pcm import ASR_RATE_HZ, resample, to_int16_bytes
from duologue.errors import ConfigError, EngineError
from services.webrtc_vad import RATES_HZ, WebRTCVADAnalyzer

PARAMS = VADParams(confidence=0.6, start_secs=0.1, stop_secs=0.2, min_volume=0.0)
LEAD_S = 0.5


@pytest.fixture(scope="module")
def call(say: Callable[[str], np.ndarray]) -> np.ndarray:
    """Half a second of silence, a spoken sentence, a second of silence, at 16 kHz."""
    lead = np.zeros(round(LEAD_S * ASR_RATE_HZ), np.float32)
    return np.concatenate([lead, say("What is the capital of France?"), lead, lead])


@pytest.mark.parametrize("rate_hz", RATES_HZ)
async def test_speech_starts_and_stops_once_at_every_rate(call: np.ndarray, rate_hz: int) -> None:
    pcm = to_int16_bytes(resample(call, ASR_RATE_HZ, rate_hz))
    # 30 ms frames: the analyzer's 20 ms do not divide them.
    step = rate_hz * 3 // 100 * 2
    frames = [
        InputAudioRawFrame(pcm[start : start + step], rate_hz, 1)
        for start in range(0, len(pcm), step)
    ]
    down, _ = await run_test(
        VADProcessor(vad_analyzer=WebRTCVADAnalyzer(params=PARAMS)),
        frames_to_send=frames,
        pipeline_params=PipelineParams(audio_in_sample_rate=rate_hz),
        start_timeout=10,
    )
    vad = [type(frame) for frame in down if "VADUser" in type(frame).__name__]
    assert vad == [VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame]
    heard = [type(frame) for frame in down]
    onset_s = heard.index(VADUserStartedSpeakingFrame) * 0.03
    assert LEAD_S < onset_s < LEAD_S + 0.4


async def states(pcm: bytes, step: int, **options) -> list[VADState]:
    """The state after each `step` bytes, at 16 kHz."""
    analyzer = WebRTCVADAnalyzer(params=PARAMS, **options)
    analyzer.set_sample_rate(16_000)
    found = [await analyzer.analyze_audio(pcm[at : at + step]) for at in range(0, len(pcm), step)]
    await analyzer.cleanup()
    return found


async def test_any_cutting_of_the_audio_gives_the_same_states(call: np.ndarray) -> None:
    pcm = to_int16_bytes(call)
    pcm = pcm[: len(pcm) // 1920 * 1920]
    whole = await states(pcm, 640)
    odd = await states(pcm, 1920)
    assert odd == whole[2::3]
    assert VADState.SPEAKING in whole


async def test_aggressiveness_sets_what_counts_as_speech() -> None:
    """A fan is speech to all but the strictest setting, which is the default."""
    fan = to_int16_bytes(np.random.default_rng(0).normal(0, 0.05, 64_000))
    meek, default = await states(fan, 640, aggressiveness=2), await states(fan, 640)
    assert meek[-1] is VADState.SPEAKING
    assert default[-1] is VADState.QUIET


async def test_silence_and_hum_are_quiet() -> None:
    hum = 0.01 * np.sin(2 * np.pi * 50 * np.arange(32_000) / 16_000)
    for sound in [np.zeros(32_000), hum]:
        assert set(await states(to_int16_bytes(sound), 640)) == {VADState.QUIET}


def test_confidence_is_yes_or_no(call: np.ndarray) -> None:
    analyzer = WebRTCVADAnalyzer()
    analyzer.set_sample_rate(16_000)
    pcm = to_int16_bytes(call)
    assert analyzer.num_frames_required() == 320
    values = {analyzer.voice_confidence(pcm[at : at + 640]) for at in range(0, len(pcm) - 640, 640)}
    assert values == {0.0, 1.0}


@pytest.mark.parametrize("level", [-1, 4, 1.5, "2", None])
def test_an_unknown_aggressiveness_is_refused(level: object) -> None:
    with pytest.raises(ConfigError, match="expected 0, 1, 2 or 3"):
        WebRTCVADAnalyzer(aggressiveness=level)  # type: ignore[arg-type]


def test_an_unknown_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="24000 Hz, expected one of 8000, 16000"):
        WebRTCVADAnalyzer().set_sample_rate(24_000)
    with pytest.raises(ConfigError, match="44100 Hz"):
        WebRTCVADAnalyzer(sample_rate=44_100).set_sample_rate(16_000)


def test_a_rate_of_its_own_goes_before_the_pipelines() -> None:
    analyzer = WebRTCVADAnalyzer(sample_rate=8_000)
    analyzer.set_sample_rate(24_000)
    assert analyzer.num_frames_required() == 160


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webrtcvad", None)
    with pytest.raises(EngineError, match=r"pip install -e '\.\[webrtcvad\]'"):
        WebRTCVADAnalyzer()
