"""Early recognition is used for the stretch that it covers, and for no other."""

import numpy as np
import pytest
from pipecat.frames.frames import InputAudioRawFrame, VADUserStoppedSpeakingFrame

from duologue.audio.pcm import to_int16_bytes
from services.segment_asr import SegmentASR

RATE = 16_000


class Counting(SegmentASR):
    """Takes the number of bytes for the words."""

    def __init__(self):
        super().__init__(
            "counting", None, ttfs_s=1, max_speech_s=26, barge_in_every_s=1, live_every_s=0
        )
        self._sample_rate = RATE
        self._audio_buffer_size_1s = RATE * 2
        self._user_speaking = True
        self.recognized: list[int] = []

    def recognize(self, audio):
        self.recognized.append(len(audio))
        return len(audio)

    async def hear(self, seconds: float, level: float) -> None:
        tone = level * np.sin(2 * np.pi * 200 * np.arange(320) / RATE)
        for _ in range(round(seconds * 50)):
            self._audio_buffer += to_int16_bytes(tone)
            self._follow_pauses(InputAudioRawFrame(to_int16_bytes(tone), RATE, 1))

    async def stop(self) -> bytes:
        """The VAD hears the end; returns the stretch as it is queued."""
        await self._handle_user_stopped_speaking(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        return self._segment_queue.get_nowait()


@pytest.fixture
def asr():
    return Counting()


async def test_silence_is_recognised_ahead(asr):
    await asr.hear(0.5, 0.3)
    await asr.hear(0.24, 0.0001)
    audio = await asr.stop()
    assert await asr._early_for[audio] == len(audio) - round(0.16 * RATE) * 2
    assert len(asr.recognized) == 1


async def test_soft_words_behind_loud_ones_void_it(asr):
    """The VAD still heard speech where the level had long fallen."""
    await asr.hear(0.5, 0.3)
    await asr.hear(0.8, 0.005)
    audio = await asr.stop()
    assert audio not in asr._early_for


async def test_loud_words_void_it(asr):
    await asr.hear(0.5, 0.3)
    await asr.hear(0.1, 0.0001)
    await asr.hear(0.3, 0.3)
    audio = await asr.stop()
    assert audio not in asr._early_for


async def test_two_stretches_keep_their_own(asr):
    await asr.hear(0.5, 0.3)
    await asr.hear(0.2, 0.0001)
    first = await asr.stop()
    asr._user_speaking = True
    await asr.hear(0.9, 0.3)
    await asr.hear(0.2, 0.0001)
    second = await asr.stop()
    assert await asr._early_for[first] < await asr._early_for[second]
