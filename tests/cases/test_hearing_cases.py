"""Public reports on what a call hears and says over time: F3, F10 and H3's endless audio."""

import asyncio
import os
import signal

import numpy as np
import pytest

from bots.models import Models
from bots.virtual_call import virtual_call
from duologue.asr.funasr_client import Funasr
from duologue.asr.whisper import Transcript
from duologue.audio.pcm import ASR_RATE_HZ
from duologue.errors import EngineError
from duologue.rehearsal import virtual
from services import asr
from services.segment_asr import SegmentASR
from tests.conversing import RULES, dialogue
from tests.fake_funasr import FAKE, Folders
from tests.fakes import FakeEngine, FakeVoice


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.delenv("DUOLOGUE_FUNASR_PYTHON", raising=False)
    return Folders(tmp_path)


def hold(models: Models, scenario) -> None:
    async def main():
        async with virtual_call(models, RULES) as call:
            await asyncio.sleep(0.3)
            await scenario(call)

    virtual.run(main())


def samples(transcript: str) -> int:
    """How many samples the scripted recogniser was given."""
    return int(transcript.split()[0])


@pytest.mark.parametrize("streaming", [True, False])
def test_f3_a_recogniser_that_is_cut_off_in_mid_speech_hears_all_of_it(folders, say, streaming):
    """pipecat #3699, livekit #4609, #6467: its process dies while somebody speaks."""
    speech = say("Tell me about the sea.")
    model = Funasr(str(folders.segments), interims=str(folders.interims) if streaming else None)

    async def scenario(call):
        first = asyncio.create_task(call.say(speech))
        await asyncio.sleep(len(speech) / ASR_RATE_HZ / 2)
        assert model._process
        os.kill(model._process._process.pid, signal.SIGKILL)
        await first
        heard = await call.wait_for("user", final=True)
        # Less the silence at its ends, which the VAD leaves out or adds.
        assert samples(heard["text"]) > 0.9 * len(speech)
        await call.wait_for("state", state="listening")
        assert [role for role, _ in dialogue(call)] == ["user", "assistant"]

    hold(Models(model, FakeEngine(), FakeVoice()), scenario)  # type: ignore[arg-type]
    model.close()
    assert folders.loads() == 2


def test_f3_who_was_not_heard_is_told_and_the_next_sentence_is_heard(folders, say):
    model = Funasr(str(folders.segments))

    async def scenario(call):
        (folders.segments / "crash").write_text("1000")
        await call.say(say("Tell me about the sea."))
        await call.wait_for("error")
        assert dialogue(call) == []
        (folders.segments / "crash").unlink()
        await call.say(say("Tell me about the sea."))
        await call.wait_for("state", state="listening")
        assert [role for role, _ in dialogue(call)] == ["user", "assistant"]

    with pytest.raises(EngineError, match="FunASR failed"):
        hold(Models(model, FakeEngine(), FakeVoice()), scenario)  # type: ignore[arg-type]
    model.close()


@pytest.mark.parametrize("gap_s", [5, 40])
def test_f10_a_sentence_behind_a_long_gap_is_said_without_another_word_of_the_user(
    converse, say, gap_s
):
    """pipecat #2941: the LM pauses between sentences."""
    goes_on = asyncio.Event()
    first, second = "The sea is deep. ", "It is cold as well."

    async def scenario(call):
        await call.say(say("Tell me about the sea."))
        await call.wait_for("bot_heard", chars=len(first.strip()))
        await asyncio.sleep(gap_s)
        before = sum(len(chunk) for _, chunk in call.ear.chunks)
        goes_on.set()
        await call.wait_for("state", state="listening")
        said = sum(len(chunk) for _, chunk in call.ear.chunks) - before
        assert said / call.voice.rate_hz == pytest.approx(5 * call.voice.word_s, abs=0.05)
        assert dialogue(call)[1:] == [("assistant", first + second)]
        assert len(call.engine.requests) == 1

    converse(scenario, [first, goes_on, second])


def test_h3_endless_speech_holds_no_more_than_one_window(say, monkeypatch):
    """Sound without a pause, for minutes: it is recognised in parts, and nothing piles up."""
    longest_s, held, parts = 8.0, [], []
    buffer = SegmentASR.process_audio_frame

    async def watched(self, frame, direction):
        await buffer(self, frame, direction)
        held.append((len(self._audio_buffer), self._segment_queue.qsize(), len(self._early_for)))

    class Stub:
        pool = None

        def transcribe(self, sound, *, hasty=False):
            if not hasty:
                parts.append(len(sound))
            return Transcript("and so on", 0.0, 0.0)

    async def scenario(call):
        await call.say(endless)
        assert len(asyncio.all_tasks()) < 60
        await call.wait_for("state", state="speaking")

    monkeypatch.setattr(asr, "MAX_SPEECH_S", longest_s)
    monkeypatch.setattr(SegmentASR, "process_audio_frame", watched)
    words = say("Tell me about the sea.")
    loud = words[np.flatnonzero(np.abs(words) > 0.02)[[0]][0] :]
    endless = np.tile(loud[: np.flatnonzero(np.abs(loud) > 0.02)[-1]], 60)
    hold(Models(Stub(), FakeEngine(), FakeVoice()), scenario)  # type: ignore[arg-type]
    buffered, queued, early = np.max(held, axis=0)
    window = round(longest_s * ASR_RATE_HZ)
    assert len(endless) > 5 * window
    assert buffered <= 2 * window + 640 and queued <= 1 and early <= 1
    assert max(parts) <= window + 320 and sum(parts) > 0.95 * len(endless)
