"""Phone calls over real websockets: who may call, what a call hears, how it ends."""

import asyncio
import json
import re
import statistics
from contextlib import AsyncExitStack
from xml.etree import ElementTree

import httpx
import jiwer
import numpy as np
import pytest
from streamdouble import g711
from streamdouble.api import call as simulated
from streamdouble.audio import frame_ulaw
from streamdouble.chaos import Impairments
from streamdouble.session import SessionConfig
from typer.testing import CliRunner
from websockets.asyncio.client import connect

from bots import cli
from bots import phone as phone_module
from bots.models import load_models
from bots.phone import KEYS_S, check
from bots.phone_auth import SETTINGS, SIGNATURE, TOKEN_S, Tokens, sign
from duologue.audio.pcm import ASR_RATE_HZ, read_audio, resample
from duologue.cli import app
from duologue.config import PhoneConfig, VadConfig, load_config
from duologue.errors import UsageError
from tests.conftest import DATA
from tests.fakes import ManualClock
from tests.phone_calls import (
    COUNT,
    FORM,
    PUBLIC,
    SECRETS,
    WORD_S,
    dial,
    late_s,
    open_line,
    ring,
    set_up,
    start,
    status_of,
)

# Calls are made in real time, which a busy machine may miss.
pytestmark = pytest.mark.flaky(reruns=2)

TEN = " ".join(["word"] * 10) + "."
MEDIA = PUBLIC.replace("https", "wss")


def stream_path(answer: httpx.Response) -> str:
    stream = ElementTree.fromstring(answer.text).find("Connect/Stream")
    assert stream is not None
    return stream.attrib["url"].removeprefix(MEDIA)


def signed(path: str, base: str = MEDIA) -> dict[str, str]:
    return {SIGNATURE: sign(SECRETS.auth_token, base + path)}


async def test_the_webhook_answers_only_what_is_signed(whisper):
    async with open_line(whisper, secrets=SECRETS) as line:
        answer = await ring(line)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/xml")
        assert stream_path(answer).startswith("/ws/")
        assert (await ring(line, path="/voice?line=2&name=a%20b")).status_code == 200
        url = f"{PUBLIC}/voice"
        newer = {
            SIGNATURE: sign(SECRETS.shared_key, url, FORM.items(), "sha256"),
            SETTINGS: "key=,algorithm=HMAC_SHA256",
        }
        assert (await ring(line, **newer)).status_code == 200
        for bad in ("", "x", sign("guessed", url, FORM.items()), sign(SECRETS.auth_token, url)):
            assert (await ring(line, **{SIGNATURE: bad})).status_code == 403
        assert (await ring(line, **(newer | {SETTINGS: "algorithm=MD5"}))).status_code == 403
        assert (await ring(line, {"To": "+1"})).status_code == 400
        assert (await ring(line, {"CallSid": "x" * 200_000})).status_code == 413


async def test_a_stream_needs_a_signature_and_an_unused_token(whisper, monkeypatch):
    async def no_work(_):
        raise AssertionError("models were asked for a call that was refused")

    clock = ManualClock()
    config = set_up(greeting=TEN)
    async with open_line(whisper, config=config, secrets=SECRETS) as line:
        line.gate.tokens = Tokens(clock)
        with monkeypatch.context() as patch:
            patch.setattr(phone_module, "load_listening", no_work)
            path = stream_path(await ring(line))
            url = line.ws + path
            assert await status_of(url) == 403
            assert await status_of(url, {SIGNATURE: "x"}) == 403
            assert await status_of(url, signed(path, "wss://another.example.org")) == 403
            assert await status_of(url, signed("/ws/other")) == 403
            for missing in ("/ws", "/ws/", "/ws/guessed"):
                assert await status_of(line.ws + missing, signed(missing)) in (403, 404)
            assert await status_of(f"{url}?x=1", signed(path)) == 403
            late = stream_path(await ring(line))
            clock.now_s = TOKEN_S
            assert await status_of(line.ws + late, signed(late)) == 403
            assert line.phone.lines.taken == 0
        path = stream_path(await ring(line))
        assert await status_of(line.ws + path, signed(path)) == 101
        assert await status_of(line.ws + path, signed(path)) == 403
        path = stream_path(await ring(line))
        async with dial(line.ws + path, headers=signed(path), call_id="CA1") as call:
            await call.heard(0.02)
        path = stream_path(await ring(line))
        async with dial(line.ws + path, headers=signed(path), call_id="CA2") as call:
            code, reason = await asyncio.wait_for(call.closed, 5)
            assert (code, "not of the call" in reason) == (1008, True)


async def test_without_authentication_no_web_page_gets_in(whisper):
    async with open_line(whisper) as line:
        assert await status_of(f"{line.ws}/ws") == 101
        assert await status_of(f"{line.ws}/ws", {"Origin": "https://evil.example"}) == 403
        assert stream_path(await ring(line)) == "/ws"


async def test_keys_are_a_message_and_interrupt(whisper):
    """Each entry is a turn of its own, with its own share of the model's tokens."""
    config = set_up(greeting=COUNT, lm_tokens=3)
    async with (
        open_line(whisper, ["You ", "pressed ", "keys."], ["More."], config=config) as line,
        dial(f"{line.ws}/ws") as call,
    ):
        engine = line.phone._models.lm
        await call.heard(1.0)
        for digit in "42#":
            await call.send(event="dtmf", streamSid="MZCA1", dtmf={"digit": digit})
        await call.until(lambda: engine.requests, within_s=KEYS_S)
        assert engine.requests[0].messages[-1]["content"] == "The caller pressed: 42#"
        assert len(call.clears) == 1
        before = len(call.audio) / 8000
        await call.heard(before + 2 * WORD_S)
        await call.send(event="dtmf", streamSid="MZCA1", dtmf={"digit": "#"})
        await call.until(lambda: len(engine.requests) == 2, within_s=KEYS_S)
        assert engine.requests[1].messages[-1]["content"].endswith("The caller pressed: #")


async def test_a_silent_call_ends(whisper):
    async with open_line(whisper, config=set_up(idle_s=1)) as line, dial(f"{line.ws}/ws") as call:
        code, _ = await asyncio.wait_for(call.closed, 10)
        assert code == 1000


async def test_a_dead_line_ends(whisper, monkeypatch):
    monkeypatch.setattr(phone_module, "SILENT_LINE_S", 0.5)
    async with open_line(whisper) as line, connect(f"{line.ws}/ws") as stream:
        for message in start():
            await stream.send(json.dumps(message))
        async with asyncio.timeout(10):
            await stream.wait_closed()
        assert stream.close_code == 1000


async def test_calls_may_end_before_the_process_does(whisper):
    async with open_line(whisper, config=set_up(greeting=COUNT, drain_s=20)) as line:
        async with dial(f"{line.ws}/ws") as call:
            await call.heard(0.1)
            line.stop()
            await call.until(lambda: line.phone.lines.closing)
            assert "All lines are busy" in (await ring(line)).text
            await call.heard(1.0)
        await asyncio.wait_for(line.running, 5)


PLIVO = [{"event": "start", "start": {"streamId": "S1", "callId": "C1"}}]
TELNYX = [
    {"event": "connected", "version": "1.0.0"},
    {
        "event": "start",
        "stream_id": "S1",
        "start": {"call_control_id": "C1", "media_format": {"encoding": "PCMU"}},
    },
]


@pytest.mark.parametrize("opening", [PLIVO, TELNYX])
async def test_other_providers(whisper, opening):
    config = set_up(greeting="hello there.")
    async with (
        open_line(whisper, config=config) as line,
        dial(f"{line.ws}/ws", opening=opening) as call,
    ):
        await call.heard(2 * WORD_S)
        assert call.marks


async def test_a_bad_network_is_ridden_out(whisper, say, tmp_path):
    """Lost and late packets, seeded; a simulator of the provider checks every message."""
    network = Impairments(loss=0.05, jitter_ms=30)
    config = SessionConfig(impairments=network, chaos_seed=7)
    frames = caller_frames(say("Tell me about the sea."))
    async with open_line(whisper, [TEN]) as line:
        report = await simulated(f"{line.ws}/ws", frames=frames, config=config)
        engine = line.phone._models.lm
    assert report.exit_code == 0 and not report.violations
    assert report.result.frames_dropped > 0
    assert len(report.audio_received) / 8000 == pytest.approx(10 * WORD_S, abs=0.05)
    assert report.result.marks_echoed == report.result.marks_received
    assert "sea" in engine.requests[0].messages[-1]["content"].lower()


def caller_frames(samples: np.ndarray) -> list[bytes]:
    """float32 [n] at 16 kHz with silence around it, as a provider sends it."""
    audio = resample(np.pad(samples, ASR_RATE_HZ), ASR_RATE_HZ, 8000)
    return frame_ulaw(g711.encode(np.round(audio * 32767)))


async def test_twenty_calls_at_once(whisper):
    """While all are held, each hears its own greeting in time."""
    config = set_up(greeting=" ".join(["hello"] * 40) + ".", sessions=20)
    config = config.model_copy(update={"vad": VadConfig(engine="webrtcvad")})
    async with open_line(whisper, config=config) as line, AsyncExitStack() as callers:
        calls = []
        for number in range(20):
            opened = dial(f"{line.ws}/ws", call_id=f"CA{number}")
            calls.append(await callers.enter_async_context(opened))
            await calls[-1].heard(0.02)
        assert line.phone.lines.taken == 20
        before = [len(call.media) for call in calls]
        await calls[-1].heard(2.0)
        for call, count in zip(calls, before, strict=True):
            assert 2.0 <= len(call.audio) / 8000 <= 40 * WORD_S
            assert statistics.quantiles(late_s(call.media[count:]), n=20)[-1] < 0.1


async def test_a_recorded_question_gets_a_spoken_answer(whisper):
    """With the embedded models, over mu-law both ways."""
    config = load_config(cli.CONFIGS / "embedded.yaml", flags=["lm.max_tokens=20"])
    models = await load_models(config)
    engine, written = models.lm, []

    class Watched:
        """The embedded LM; what it writes is kept."""

        async def stream(self, request):
            written.append(request.messages[-1]["content"])
            async for step in engine.stream(request):
                written.append(getattr(step, "text", ""))
                yield step

    models.lm = Watched()  # type: ignore[assignment]
    try:
        async with (
            open_line(None, models=models, config=config) as line,
            dial(f"{line.ws}/ws") as call,
        ):
            await call.say(read_audio(DATA / "questions/question_19.ogg"))
            await call.heard(0.5)
            await call.quiet(1.0)
    finally:
        models.lm = engine
        await models.close()
    heard = g711.decode(call.audio).astype(np.float32) / 32768
    heard = whisper.transcribe(np.pad(resample(heard, 8000, ASR_RATE_HZ), 4000)).text
    question, *answer = written
    print(question, answer, heard)
    assert jiwer.wer(words("What starters do you have?"), words(question)) <= 0.4
    assert jiwer.wer(words("".join(answer)), words(heard)) <= 0.3


def words(text: str) -> str:
    return " ".join(re.findall("[a-z']+", text.lower()))


@pytest.mark.parametrize(
    ("phone", "token", "problem"),
    [
        ({"host": "0.0.0.0", "auth": False}, "", "anyone could call"),
        ({"public_url": PUBLIC}, "", "TWILIO_AUTH_TOKEN is not set"),
        ({"public_url": PUBLIC}, "  ", "TWILIO_AUTH_TOKEN is not set"),
        ({}, "x", "--public-url is missing"),
    ],
)
def test_what_authentication_needs(monkeypatch, phone, token, problem):
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", token)
    with pytest.raises(UsageError, match=problem):
        check(PhoneConfig(**phone))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_without_authentication_on_loopback(host):
    assert check(PhoneConfig(host=host, auth=False)) is None


def test_the_command_says_what_to_paste_at_the_provider(monkeypatch):
    asked = []

    async def serve(config, *, ready):
        asked.append(config.phone)
        ready()

    monkeypatch.setattr(phone_module, "serve", serve)
    monkeypatch.setattr(cli, "quiet", lambda _: None)
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "x")
    options = ["--host", "10.0.0.1", "--port", "8000", "--public-url", PUBLIC]
    result = CliRunner().invoke(app, ["phone", *options])
    assert f"HTTP POST, {PUBLIC}/voice" in result.stderr
    result = CliRunner().invoke(app, ["phone", "--no-auth"])
    assert "ws://127.0.0.1:7861/ws" in result.stderr
    assert [(p.host, p.port, p.auth) for p in asked] == [
        ("10.0.0.1", 8000, True),
        ("127.0.0.1", 7861, False),
    ]
