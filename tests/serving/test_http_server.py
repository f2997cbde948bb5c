"""Speech over HTTP: a real server, OpenAI's own client and httpx."""

import asyncio
import io
import re
import threading
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest
import soundfile
from openai import APIStatusError, AsyncOpenAI

from duologue.engines.torch_model import engine_of
from duologue.errors import EngineError
from duologue.token2wav.pipeline import EngineSettings
from duologue.token2wav.weights import load_preset
from tests.fakes import FakeVoice
from tests.serving.servers import CLIP, served

SPEECH = "/v1/audio/speech"


@asynccontextmanager
async def web(speaker, token: str = ""):
    async with (
        served(speaker, token) as ports,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.http}", timeout=20) as client,
    ):
        yield client


class GatedVoice(FakeVoice):
    """Says the second clause once the gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def synthesize(self, text):
        if self.said:
            self.gate.wait(20)
        return super().synthesize(text)


@pytest.mark.parametrize("form", ["pcm", "wav", "mp3", "opus"])
async def test_every_form_holds_the_same_sound(make_speaker, piper, form):
    speaker = make_speaker(piper=piper)
    async with web(speaker) as client:
        body = {"input": "The sea is deep. So is the sky.", "response_format": form}
        answer = await client.post(SPEECH, json=body)
        plain = await client.post(SPEECH, json=body | {"response_format": "pcm"})
    assert answer.status_code == 200
    expected = np.frombuffer(plain.content, "<i2") / 32768
    if form == "pcm":
        samples = np.frombuffer(answer.content, "<i2") / 32768
    else:
        samples, rate_hz = soundfile.read(io.BytesIO(answer.content))
        assert rate_hz == 24_000
    # MP3 pads its ends by a frame or three, and delays the sound.
    assert 0 <= len(samples) - len(expected) < 3000
    spectra = [np.abs(np.fft.rfft(x[: len(expected)])) for x in (samples, expected)]
    assert np.corrcoef(*spectra)[0, 1] > 0.95


async def test_openais_client_hears_the_beginning_before_the_end_is_made(make_speaker):
    voice = GatedVoice()
    async with served(make_speaker(piper=voice)) as ports:
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{ports.http}/v1", api_key="x")
        async with (
            client,
            client.audio.speech.with_streaming_response.create(
                model="piper", voice="joe", input="One two. Three four.", response_format="pcm"
            ) as answer,
        ):
            parts = answer.iter_bytes()
            first = await anext(parts)
            assert voice.said == ["One two."]
            voice.gate.set()
            rest = b"".join([part async for part in parts])
    # Four words of 0.2 s.
    assert len(first + rest) == 2 * 4 * 4800


async def test_speech_tokens_are_an_input_too(speaker, speech):
    async with web(speaker) as client:
        body = {"input": speech(1, 10).tolist(), "response_format": "pcm", "seed": 3}
        one, other = [(await client.post(SPEECH, json=body)).content for _ in range(2)]
    assert len(one) == 2 * 10 * 960
    assert one == other


async def test_a_listener_who_hangs_up_frees_the_place(make_speaker, batcher, speech):
    speaker = make_speaker(batcher=batcher, sessions=1)
    body = {"input": speech(1, 5_000).tolist(), "response_format": "pcm"}
    async with web(speaker) as client:
        async with client.stream("POST", SPEECH, json=body) as answer:
            parts = answer.aiter_bytes()
            await anext(parts)
            assert len(batcher._sessions) == 1
            full = await client.post(SPEECH, json={"input": [1]})
            ready = await client.get("/ready")
        assert full.status_code == 503 and full.headers["Retry-After"] == "1"
        assert full.json()["error"]["message"] == "all 1 places are taken; try again later"
        assert (ready.status_code, ready.json()["active"]) == (503, 1)
        assert await speaker.outcome() == "CapacityError"
        assert await speaker.outcome() == "cancelled"
        assert (speaker.active, len(batcher._sessions)) == (0, 0)
        assert (await client.get("/ready")).json()["ready"]


async def test_a_listener_who_hangs_up_before_the_first_sound_frees_the_place(make_speaker):
    voice = GatedVoice()
    voice.said.append("")
    speaker = make_speaker(piper=voice)
    async with web(speaker) as client:
        asking = asyncio.create_task(client.post(SPEECH, json={"input": "Hello."}))
        async with asyncio.timeout(20):
            while not speaker.active:  # noqa: ASYNC110  (a place has no event)
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
        assert await speaker.outcome() == "cancelled"
        voice.gate.set()


async def test_a_listener_who_does_not_read_is_let_go(make_speaker, instant):
    speaker = make_speaker(batcher=instant, idle_s=1, ahead_s=2, max_tokens=10**7)
    body = {"input": [7] * 1_000_000, "response_format": "pcm"}
    async with web(speaker) as client, client.stream("POST", SPEECH, json=body) as answer:
        parts = answer.aiter_bytes()
        await anext(parts)
        assert await speaker.outcome() == "timeout"
        # Of 1.9 GB: what sockets hold on their way.
        assert len(instant.tokens) * 960 * 2 < 64e6
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in parts:
                pass


UNSPEAKABLE = [
    (b"", 400, "Invalid JSON"),
    (b"\xff", 400, "Invalid JSON"),
    ([], 400, "object"),
    ({}, 400, "input: Field required"),
    ({"input": ""}, 400, "nothing to say"),
    ({"input": "..."}, 400, "found nothing to say"),
    ({"input": []}, 400, "nothing to say"),
    ({"input": [1.5]}, 400, "input"),
    ({"input": [-1]}, 400, "greater than or equal to 0"),
    ({"input": [6561]}, 400, "found 6561, expected 0 to 6560"),
    ({"input": "a" * 51}, 413, "more than 50 characters"),
    ({"input": "x" * 5000}, 413, "a body of more than 2048 bytes"),
    ({"input": "hi", "voice": "alloy"}, 404, "unknown voice 'alloy'"),
    ({"input": "hi", "voice": "ada"}, 422, "needs a talker in the set-up; loaded is the voice"),
    ({"input": [1], "voice": "joe"}, 422, "takes text, not speech tokens; loaded is"),
    ({"input": "hi", "model": "tts-1"}, 422, "model 'tts-1' does not speak.*loaded is"),
    ({"input": "hi", "response_format": "aac"}, 400, "'mp3', 'opus', 'wav' or 'pcm'"),
    ({"input": "hi", "speed": 2}, 400, "speed: Input should be less than or equal to 1"),
    ({"input": "hi", "lang": "fr"}, 400, "expected en or zh"),
    ({"input": "hi", "pitch": 2}, 400, "pitch: Extra inputs are not permitted"),
]


async def test_what_cannot_be_said_says_why(make_speaker, batcher):
    speaker = make_speaker(batcher=batcher, piper=FakeVoice(), max_chars=50, max_message_bytes=2048)
    async with web(speaker) as client:
        for body, status, says in UNSPEAKABLE:
            content = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = await client.post(SPEECH, **content)
            message = answer.json()["error"]["message"]
            assert answer.status_code == status, (body, message)
            assert re.search(says, message), (body, message)
    assert speaker.active == 0


async def test_a_failure_after_the_first_sound_cuts_the_answer_short(make_speaker):
    class Failing(FakeVoice):
        def synthesize(self, text):
            if self.said:
                raise OSError("/secret")
            return super().synthesize(text)

    async with web(make_speaker(piper=Failing())) as client:
        body = {"input": "One. Two.", "response_format": "pcm"}
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(SPEECH, json=body)
        first = await client.post(SPEECH, json=body)
    assert (first.status_code, "/secret" in first.text) == (500, False)


async def test_voices_and_tokens(speaker, store):
    clip = CLIP.read_bytes()
    async with web(speaker) as client:
        made = await client.put("/v1/voices/eve", content=clip)
        assert (made.status_code, made.json()["takes_tokens"]) == (200, True)
        voices = (await client.get("/v1/voices")).json()["voices"]
        assert [voice["name"] for voice in voices] == ["joe", "ada", "eve"]
        assert (await client.put("/v1/voices/eve", content=clip)).status_code == 409
        again = await client.put("/v1/voices/eve?replace=true", content=clip)
        assert again.status_code == 200
        assert (await client.delete("/v1/voices/eve")).status_code == 204
        assert (await client.delete("/v1/voices/eve")).status_code == 404
        assert store.names() == ["ada"]
        bad = await client.put("/v1/voices/eve", content=b"x")
        assert bad.json()["error"]["message"].startswith("audio: found 1 bytes")
        ids = (await client.post("/v1/audio/tokens", content=clip)).json()["ids"]
        assert len(ids) > 75


async def test_live_ready_and_metrics(speaker):
    async with web(speaker) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        ready = (await client.get("/ready")).json()
        assert (ready["ready"], ready["capacity"]) == (True, 8)
        assert "token2wav" in ready["loaded"] and "joe" in ready["loaded"]
        await client.post(SPEECH, json={"input": "Hi."})
        counted = (await client.get("/metrics")).text
        assert 'duologue_sessions_ended_total{kind="http",outcome="done"}' in counted
        assert 'duologue_first_audio_seconds_count{engine="piper"}' in counted
        assert (await client.get("/nothing")).json()["error"]["code"] == 404
        assert (await client.get(SPEECH)).status_code == 405


async def test_a_page_of_another_site_reaches_nothing(speaker):
    async with web(speaker) as client:
        answer = await client.get("/v1/voices", headers={"Host": "evil.example"})
        assert answer.status_code == 400


async def test_an_engine_that_has_ended_is_not_ready(make_speaker):
    model = engine_of(load_preset("tiny", 3), EngineSettings(sessions=1, window=20))
    batcher = model.batcher()
    batcher.close()
    async with web(make_speaker(batcher=batcher)) as client:
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post(SPEECH, json={"input": [1]})).status_code == 500
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (
            503,
            "an engine has ended; restart the server",
        )


async def test_what_is_said_stays_out_of_the_log(make_speaker, caplog):
    class Failing(FakeVoice):
        def synthesize(self, text):
            raise EngineError(f"the voice failed on {text!r}") from RuntimeError("no memory")

    async with web(make_speaker(piper=Failing())) as client:
        assert (await client.post(SPEECH, json={"input": "My secret."})).status_code == 500
    assert "no memory" in caplog.text and "clause of 10 characters" in caplog.text
    assert "secret" not in caplog.text


async def test_without_the_token_only_health_answers(speaker):
    async with web(speaker, "secret") as client:
        for path in ("/v1/voices", "/metrics", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401 and "Bearer TOKEN" in answer.text
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        right = {"Authorization": "Bearer secret"}
        assert (await client.get("/v1/voices", headers=right)).status_code == 200


async def test_openais_client_is_refused_in_its_own_terms(speaker):
    async with served(speaker, "secret") as ports:
        base = f"http://127.0.0.1:{ports.http}/v1"
        async with AsyncOpenAI(base_url=base, api_key="wrong", max_retries=0) as client:
            with pytest.raises(APIStatusError) as error:
                await client.audio.speech.create(model="piper", voice="joe", input="Hi.")
    assert error.value.status_code == 401
