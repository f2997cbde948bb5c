"""Public reports, as far as they touch phone calls. Each test names its report."""

import asyncio
import gc
import json
import socket
import statistics
import time

import numpy as np
import psutil
import pytest
from streamdouble import g711
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bots import phone
from bots.assembly import load_listening
from duologue.audio.pcm import ASR_RATE_HZ
from duologue.tts.piper import Speech
from duologue.tts.words import spread
from tests.phone_calls import (
    COUNT,
    WORD_S,
    dial,
    late_s,
    open_line,
    refusal,
    ring,
    set_up,
    start,
    status_of,
)

# Calls are made in real time, which a busy machine may miss.
pytestmark = pytest.mark.flaky(reruns=2)


async def test_a_full_line_says_so_and_those_who_talk_feel_nothing(whisper):
    async with open_line(whisper, config=set_up(greeting=COUNT, sessions=1)) as line:
        async with dial(f"{line.ws}/ws") as call:
            await call.heard(0.5)
            answer = await ring(line)
            assert "All lines are busy" in answer.text and "<Hangup/>" in answer.text
            # Report I2: far more than there are places, all at once.
            refused = await asyncio.gather(*(refusal(f"{line.ws}/ws") for _ in range(40)))
            assert set(refused) == {
                (1013, "The line is full: 1 of 1 places are taken. Please try again in a minute.")
            }
            await call.heard(3.0)
            assert max(late_s(call.media)) < 0.1
        await line.phone.lines._empty.wait()
        assert await status_of(f"{line.ws}/ws") == 101


async def test_barge_in_clears_and_the_bot_remembers_what_the_phone_has_played(whisper, say):
    """Report A8: words commit before the sentence is over. The phone is 0.6 s late."""
    async with (
        open_line(whisper, ["Fine."], config=set_up(greeting=COUNT)) as line,
        dial(f"{line.ws}/ws", mark_delay_s=0.6) as call,
    ):
        await call.heard(2.0)
        interrupted = say("Stop, I want to know something else.")
        began = await call.say(interrupted)
        await call.until(lambda: call.clears)
        onset_s = np.flatnonzero(np.abs(interrupted) > 0.02)[0] / ASR_RATE_HZ
        cleared_s = call.clears[0] - began - onset_s
        assert cleared_s < 0.5
        assert call.clears[0] - began < len(interrupted) / ASR_RATE_HZ
        engine = line.phone._models.lm
        await call.until(lambda: engine.requests)
        kept = [m for m in engine.requests[0].messages if m["role"] == "assistant"][-1]["content"]
        heard_s = call.clears[0] - call.media[0][0] - 0.6
        assert abs(len(kept.split()) - heard_s / WORD_S) <= 1.5
        settled_s = call.clears[0] + 0.1
        await call.until(lambda: call.media[-1][0] > settled_s)
        again_s = next(at for at, _ in call.media if at > settled_s)
        assert again_s > began + len(interrupted) / ASR_RATE_HZ


async def test_the_greeting_and_the_longest_call_whose_last_words_are_heard(whisper):
    """Report J6: the call ends while the bot still speaks."""
    limits = set_up(greeting=" ".join(["hello"] * 8) + ".", session_s=1)
    async with open_line(whisper, config=limits) as line, dial(f"{line.ws}/ws") as call:
        code, _ = await asyncio.wait_for(call.closed, 10)
        now_s = time.monotonic()
        assert code == 1000
        assert len(call.audio) / 8000 == pytest.approx(8 * WORD_S, abs=0.05)
        assert now_s >= call.media[0][0] + 8 * WORD_S, "the end was not heard"
        await line.phone.lines._empty.wait()


@pytest.fixture
async def talking(whisper):
    """A line on which somebody is being told something long."""
    config = set_up(greeting=" ".join(["word"] * 200) + ".", sessions=5)
    async with open_line(whisper, config=config) as line, dial(f"{line.ws}/ws") as call:
        await call.heard(0.1)
        yield line, call


async def closing(url: str, *messages: object) -> tuple[int | None, str | None]:
    """How a stream ends on which all this is sent."""
    async with connect(url, compression=None) as stream:
        try:
            for message in [*map(json.dumps, start("CA2")), *messages]:
                await stream.send(message)  # type: ignore[arg-type]
            await stream.wait_closed()
        except ConnectionClosed:
            pass
        return stream.close_code, stream.close_reason


async def harmless(call, attack) -> None:
    """Others hear no difference, and nothing piles up."""
    before = psutil.Process().memory_info().rss
    first = len(call.media)
    await attack
    await call.heard((len(call.audio) / 8000) + 0.5)
    assert statistics.quantiles(late_s(call.media[first:]), n=20)[-1] < 0.1
    assert psutil.Process().memory_info().rss - before < 50e6


async def test_h3_a_message_of_10_mib(talking):
    line, call = talking

    async def attack() -> None:
        assert (await closing(f"{line.ws}/ws", "x" * 10_485_760))[0] == 1009

    await harmless(call, attack())


async def test_h3_a_million_fragments_of_one_byte(talking):
    line, call = talking

    async def attack() -> None:
        # The peer may be too busy sending to read why.
        code, _ = await closing(f"{line.ws}/ws", ("x" for _ in range(1_000_000)))
        assert code in (1009, 1006)

    await harmless(call, attack())


@pytest.mark.parametrize(
    "second", [json.dumps({"event": "media", "media": {"payload": "/" * 10_664}}), bytes(16_000)]
)
async def test_h3_endless_audio(talking, second):
    """As messages of the protocol, and as raw PCM, which is none of it."""
    line, call = talking

    async def attack() -> None:
        code, reason = await closing(f"{line.ws}/ws", *[second] * 1000)
        assert (code, "real time" in (reason or "")) == (1008, True)
        assert line.phone.lines.taken == 1

    await harmless(call, attack())


async def test_h3_a_thousand_connects(talking):
    line, call = talking

    async def some() -> None:
        for _ in range(100):
            assert await status_of(f"{line.ws}/ws", {"Origin": "https://evil.example"}) == 403

    async def attack() -> None:
        await asyncio.gather(*(some() for _ in range(10)))

    await harmless(call, attack())


async def test_f1_fifty_calls_leave_nothing_behind(whisper):
    process = psutil.Process()

    async def one(number: int) -> None:
        async with dial(f"{line.ws}/ws", call_id=f"CA{number}") as call:
            await call.heard(0.1)
        await line.phone.lines._empty.wait()

    def held() -> tuple[int, int, int]:
        gc.collect()
        return len(asyncio.all_tasks()), process.num_fds(), len(gc.get_objects())

    async with open_line(whisper, config=set_up(greeting=COUNT)) as line:
        for number in range(5):
            await one(number)
        tasks, files, objects = held()
        for number in range(50):
            await one(number)
        after = held()
    assert after[0] <= tasks
    assert after[1] <= files
    assert after[2] < objects + 1000


async def test_f7_a_half_closed_stream_does_not_hold_up_the_end(whisper):
    """A peer that has stopped reading and never closes."""
    async with open_line(whisper, config=set_up(greeting=COUNT)) as line:
        raw = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", line.port))
        raw.sendall(UPGRADE)
        assert b" 101 " in await asyncio.to_thread(raw.recv, 1000)
        for message in start():
            raw.sendall(masked(json.dumps(message).encode()))
        async with asyncio.timeout(5):
            while line.phone.lines.taken == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        raw.shutdown(socket.SHUT_WR)
        began = time.monotonic()
    assert time.monotonic() - began < 2.0
    raw.close()


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: phone\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def masked(payload: bytes) -> bytes:
    """A text frame whose mask changes nothing."""
    return b"\x81" + bytes([0x80 | 126]) + len(payload).to_bytes(2, "big") + bytes(4) + payload


async def test_e6_the_pitch_stays(whisper, monkeypatch):
    """24 kHz of the voice to the phone's 8 kHz: a tone keeps its frequency, and its length.

    The other way nothing is resampled in front of the VAD; the recogniser's test is an answer's.
    """
    listening = []

    async def keep(config):
        listening.append(await load_listening(config))
        return listening[-1]

    monkeypatch.setattr(phone, "load_listening", keep)
    tone_hz = 440.0

    class Tone:
        rate_hz = 24_000
        pool = None

        def synthesize(self, text: str):
            times = np.arange(2 * self.rate_hz) / self.rate_hz
            samples = (0.5 * np.sin(2 * np.pi * tone_hz * times)).astype(np.float32)
            return Speech(samples, spread(text, [len(samples)]))

    async with (
        open_line(whisper, voice=Tone(), config=set_up(greeting="Tone.")) as line,
        dial(f"{line.ws}/ws") as call,
    ):
        await call.heard(1.9)
        await call.quiet(0.3)
    assert listening[0].vad.sample_rate == 8000
    heard = g711.decode(call.audio).astype(np.float32)
    assert len(heard) / 8000 == pytest.approx(2.0, abs=0.03)
    spectrum = np.abs(np.fft.rfft(heard[:8000] * np.hanning(8000), 80_000))
    assert np.argmax(spectrum) / 10 == pytest.approx(tone_hz, rel=0.005)
