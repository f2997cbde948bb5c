"""Speech over gRPC: a real server and real clients on a real port."""

import asyncio
import re
import threading

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from duologue.token2wav.stream import Schedule
from duologue.voices import VoiceStore
from tests.fakes import FakeBatcher, FakeVoice
from tests.serving.servers import CLIP, TOKEN, client, heard, served, start, text, tokens

SMALL = [4, 6]


async def status_of(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await (heard(call) if hasattr(call, "read") else call)
    return error.value.code(), error.value.details()


def refused(port: int, messages: list) -> tuple[grpc.StatusCode, str]:
    """As gRPC's other client tells it; aio's says INTERNAL where it was still sending."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.RpcError) as error:
            list(stubs.SpeechStub(channel).Synthesize(iter(messages), timeout=20))
        return error.value.code(), error.value.details()


async def test_tokens_become_the_samples_that_the_engine_gives(speaker, batcher, store, speech):
    ids = speech(1, 30)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize(iter([start(voice="ada", seed=9, schedule=SMALL), tokens(ids)]))
        answers = [answer async for answer in call]
    started = answers[0].started
    assert (started.engine, started.voice, started.rate_hz) == ("token2wav", "ada", 24_000)
    assert (started.seed, list(started.schedule)) == (9, SMALL)
    assert started.voice_digest == store.get("ada").digest
    assert not any(answer.HasField("started") for answer in answers[1:])
    said, done = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def emit(result):
        said.append(result.samples)
        if result.final:
            loop.call_soon_threadsafe(done.set)

    utterance = batcher.open(store.get("ada"), 9, emit, Schedule(tuple(SMALL)))
    utterance.push(ids)
    utterance.finish()
    await done.wait()
    expected = np.concatenate(said) * 32767
    got = np.frombuffer(b"".join(answer.pcm for answer in answers), "<i2")
    assert len(got) == 30 * TOKEN
    assert np.abs(got - expected).max() <= 1


async def test_sound_leaves_while_text_and_tokens_still_come(speaker, speech):
    async with served(speaker) as ports, client(ports) as stub:
        for first, rest in ((tokens(speech(1, 30)), tokens([5])), (text("Hi. "), text("Ho."))):
            call = stub.Synthesize()
            await call.write(start(schedule=SMALL))
            await call.write(first)
            assert len((await call.read()).pcm) > 0
            await call.write(rest)
            await call.done_writing()
            assert len(await heard(call)) > 0
            assert await speaker.outcome() == "done"


async def test_interleaved_calls_sound_as_each_alone(speaker, speech):
    rng = np.random.default_rng(0)

    async def speak(stub, number: int, step: int) -> np.ndarray:
        call = stub.Synthesize()
        await call.write(start(seed=number, schedule=SMALL))
        ids = speech(number, 14 + number)

        async def feed():
            for at in range(0, len(ids), step):
                await call.write(tokens(ids[at : at + step]))
            await call.done_writing()

        feeding = asyncio.create_task(feed())
        samples = await heard(call)
        await feeding
        return samples

    async with served(speaker) as ports, client(ports) as stub:
        alone = [await speak(stub, number, 50) for number in range(8)]
        steps = rng.integers(1, 9, 8).tolist()
        together = await asyncio.gather(*(speak(stub, n, s) for n, s in enumerate(steps)))
    for number, (one, other) in enumerate(zip(alone, together, strict=True)):
        assert len(one) == len(other) == (14 + number) * TOKEN
        assert np.abs(one.astype(int) - other).max() <= 1
    assert np.abs(alone[0][: 14 * TOKEN].astype(int) - alone[1][: 14 * TOKEN]).max() > 100


@pytest.mark.parametrize("end", ["cancel", "deadline", "vanish"])
async def test_the_end_of_a_call_ends_its_work(make_speaker, batcher, speech, end):
    speaker = make_speaker(batcher=batcher, sessions=1)
    async with served(speaker) as ports, client(ports) as stub:
        async with client(ports) as other:
            stub_here = other if end == "vanish" else stub
            call = stub_here.Synthesize(timeout=3 if end == "deadline" else None)
            await call.write(start(schedule=SMALL))
            await call.write(tokens(speech(1, 30)))
            await call.read()
            assert (speaker.active, len(batcher._sessions)) == (1, 1)
            full = await status_of(stub.Synthesize(iter([start()])))
            assert full[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert full[1] == "all 1 places are taken; try again later"
            assert await speaker.outcome() == "CapacityError"
            if end == "cancel":
                call.cancel()
            if end == "deadline":
                assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert await speaker.outcome() == "cancelled"
        assert (speaker.active, len(batcher._sessions)) == (0, 0)
        assert len(await heard(stub.Synthesize(iter([start(), tokens([1, 2, 3, 4])])))) == 4 * TOKEN


async def test_a_call_cancelled_while_its_session_opens_leaves_none(make_speaker):
    class Gated(FakeBatcher):
        gate, entered = threading.Event(), threading.Event()

        def open(self, voice, seed, emit, schedule=None):
            self.entered.set()
            self.gate.wait(20)
            return super().open(voice, seed, emit, schedule)

    batcher = Gated()
    speaker = make_speaker(batcher=batcher)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize()
        await call.write(start())
        await call.write(tokens([1]))
        await asyncio.to_thread(batcher.entered.wait, 20)
        call.cancel()
        assert await speaker.outcome() == "cancelled"
        assert batcher.cancelled == 0
        batcher.gate.set()
        async with asyncio.timeout(20):
            while not batcher.cancelled:  # noqa: ASYNC110  (nothing tells)
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("rate_hz", [8000, 16_000, 48_000])
async def test_sound_comes_at_the_rate_that_is_asked_for(make_speaker, instant, rate_hz):
    async with served(make_speaker(batcher=instant)) as ports, client(ports) as stub:
        call = stub.Synthesize(iter([start(rate_hz=rate_hz), tokens([1] * 50)]))
        assert len(await heard(call)) == 2 * rate_hz


async def test_a_clause_that_waits_is_not_spoken_for_a_cancelled_call(make_speaker, piper):
    speaker = make_speaker(piper=piper)
    async with served(speaker) as ports, client(ports) as stub:
        calls = [stub.Synthesize(iter([start(), text("A long sentence. " * 40)])) for _ in range(3)]
        for call in calls:
            await call.read()
            call.cancel()
        for _ in calls:
            assert await speaker.outcome() == "cancelled"
        assert len(await heard(stub.Synthesize(iter([start(), text("Hello.")])))) > 4000


async def test_a_client_that_does_not_read_is_not_worked_for(make_speaker, instant):
    speaker = make_speaker(batcher=instant, idle_s=1, ahead_s=2, max_tokens=10**7)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize()

        async def feed():
            await call.write(start())
            for _ in range(200):
                await call.write(tokens([6000] * 20_000))

        feeding = asyncio.create_task(feed())
        await call.read()
        assert await speaker.outcome() == "timeout"
        feeding.cancel()
        await asyncio.wait([feeding])
        # Of 4,000,000 tokens, 7.7 GB of sound: what gRPC itself holds on its way.
        assert len(instant.tokens) * TOKEN * 2 < 64e6
        assert instant.cancelled == 1


async def test_a_reader_gets_all_however_far_the_sender_is_ahead(make_speaker, instant):
    speaker = make_speaker(batcher=instant, ahead_s=0.1)
    async with served(speaker) as ports, client(ports) as stub:
        samples = await heard(stub.Synthesize(iter([start(), tokens([7] * 5000)])))
    assert len(samples) == 5000 * TOKEN


UNSPEAKABLE = [
    ([], "INVALID_ARGUMENT", "first message of a call must be `start`"),
    ([text("hi")], "INVALID_ARGUMENT", "first message of a call must be `start`"),
    ([start()], "INVALID_ARGUMENT", "nothing to say: send some text"),
    ([start(), start()], "INVALID_ARGUMENT", "found start, expected text or tokens"),
    ([start(), pb.SynthesizeRequest()], "INVALID_ARGUMENT", "found an empty message"),
    ([start(), text("hi"), tokens([1])], "INVALID_ARGUMENT", "text and tokens in one"),
    ([start(), tokens([6561])], "INVALID_ARGUMENT", "found 6561, expected 0 to 6560"),
    ([start(), tokens([-1])], "INVALID_ARGUMENT", "found -1, expected 0 to 6560"),
    ([start(), tokens([])], "INVALID_ARGUMENT", "found nothing to say"),
    ([start(), text("(laughs) ...")], "INVALID_ARGUMENT", "found nothing to say"),
    ([start(), text("a" * 51)], "INVALID_ARGUMENT", "more than 50 characters"),
    ([start(), tokens([1] * 30), tokens([1] * 30)], "INVALID_ARGUMENT", "more than 50 tokens"),
    ([start(voice="bob"), text("hi")], "NOT_FOUND", "unknown voice 'bob'.*server's own: joe"),
    ([start(voice="../x"), text("hi")], "NOT_FOUND", "expected a name of letters"),
    ([start(voice="joe"), tokens([1])], "FAILED_PRECONDITION", "'joe' takes text, not.*loaded"),
    (
        [start(voice="ada"), text("hi")],
        "FAILED_PRECONDITION",
        "needs a talker.*loaded",
    ),
    ([start(rate_hz=100), text("hi")], "INVALID_ARGUMENT", "rate_hz: found 100, expected 8000"),
    ([start(lang="fr"), text("hi")], "INVALID_ARGUMENT", "lang: found 'fr', expected en or zh"),
    ([start(schedule=[0]), tokens([1])], "INVALID_ARGUMENT", "schedule: found .0., expected"),
    ([start(schedule=[4, 9999]), tokens([1])], "INVALID_ARGUMENT", "expected 1 to 250 tokens"),
    ([start(), text("x" * 5000)], "RESOURCE_EXHAUSTED", "larger than max"),
]


async def test_what_cannot_be_said_says_why(make_speaker, batcher):
    speaker = make_speaker(
        batcher=batcher,
        piper=FakeVoice(),
        max_chars=50,
        max_tokens=50,
        max_message_bytes=2048,
    )
    async with served(speaker) as ports:
        for messages, code, says in UNSPEAKABLE:
            found, details = await asyncio.to_thread(refused, ports.grpc, messages)
            assert found == grpc.StatusCode[code], (messages, details)
            assert re.search(says, details), (messages, details)
    assert (speaker.active, len(batcher._sessions)) == (0, 0)


async def test_a_silent_client_loses_its_place(make_speaker, instant):
    speaker = make_speaker(batcher=instant, idle_s=0.2)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize()
        await call.write(start())
        await call.write(tokens([1]))
        code, details = await status_of(call)
        assert (code, details) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "the client has sent nothing for 0.2 s",
        )


async def test_a_call_has_an_end(make_speaker, instant):
    speaker = make_speaker(batcher=instant, call_s=0.2)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize()
        await call.write(start())
        code, details = await status_of(call)
        assert (code, details) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "the call took longer than 0.2 s",
        )


async def test_a_failing_engine_says_so_and_keeps_its_folders_to_itself(make_speaker, caplog):
    class Broken(FakeVoice):
        def synthesize(self, text):
            raise OSError("/secret/folder")

    speaker = make_speaker(piper=Broken())
    async with served(speaker) as ports, client(ports) as stub:
        code, details = await status_of(stub.Synthesize(iter([start(), text("hi")])))
    assert (code, details) == (
        grpc.StatusCode.INTERNAL,
        "the server failed; its log says why. Try again.",
    )
    assert "/secret/folder" in caplog.text


async def test_voices_come_and_go_for_every_way_in(make_speaker, batcher, store, front_end):
    speaker = make_speaker(batcher=batcher, piper=FakeVoice())
    clip = CLIP.read_bytes()
    async with served(speaker) as ports, client(ports) as stub:
        made = await stub.AddVoice(pb.AddVoiceRequest(name="eve", clip=clip))
        assert (made.name, made.takes_tokens, made.takes_text) == ("eve", True, False)
        assert made.digest == VoiceStore(store.folder).info("eve").digest
        listed = (await stub.ListVoices(pb.ListVoicesRequest())).voices
        assert [(v.name, v.builtin) for v in listed] == [
            ("joe", True),
            ("ada", False),
            ("eve", False),
        ]
        said = await heard(stub.Synthesize(iter([start(voice="eve"), tokens([1, 2, 3, 4])])))
        assert len(said) == 4 * TOKEN
        again = pb.AddVoiceRequest(name="eve", clip=clip)
        taken = await status_of(stub.AddVoice(again))
        assert taken[0] == grpc.StatusCode.ALREADY_EXISTS
        await stub.AddVoice(pb.AddVoiceRequest(name="eve", clip=clip, replace=True))
        await stub.DeleteVoice(pb.DeleteVoiceRequest(name="eve"))
        gone = await status_of(stub.DeleteVoice(pb.DeleteVoiceRequest(name="eve")))
        assert gone[0] == grpc.StatusCode.NOT_FOUND
        assert store.names() == ["ada"]


async def test_clips_and_names_that_cannot_be_used(speaker, store):
    clip = CLIP.read_bytes()
    rows = [
        ("a b", clip, "INVALID_ARGUMENT", "expected a name of letters"),
        ("../x", clip, "INVALID_ARGUMENT", "expected a name of letters"),
        ("joe", clip, "ALREADY_EXISTS", "comes with the server"),
        ("eve", b"", "INVALID_ARGUMENT", "^audio: found 0 bytes that are not audio"),
        ("eve", b"RIFFrubbish", "INVALID_ARGUMENT", "^audio: found 11 bytes that are not audio"),
    ]
    async with served(speaker) as ports, client(ports) as stub:
        for name, content, code, says in rows:
            request = pb.AddVoiceRequest(name=name, clip=content)
            found, details = await status_of(stub.AddVoice(request))
            assert found == grpc.StatusCode[code], (name, details)
            assert re.search(says, details), (name, details)
    assert store.names() == ["ada"]


async def test_sound_becomes_the_tokens_of_the_front_end(speaker, store):
    async with served(speaker) as ports, client(ports) as stub:
        found = await stub.Tokenize(pb.TokenizeRequest(audio=CLIP.read_bytes()))
        assert found.rate_hz == 25
        # The voice's clip is the same sound, less the silence around it.
        assert abs(len(found.ids) - len(store.get("ada").tokens)) < 50
        assert len(set(found.ids)) > 10 and max(found.ids) < 6561
        bad = await status_of(stub.Tokenize(pb.TokenizeRequest(audio=b"x")))
        assert bad[0] == grpc.StatusCode.INVALID_ARGUMENT


async def test_without_models_that_listen_nothing_is_listened_to(make_speaker, batcher):
    speaker = make_speaker(batcher=batcher, listens=False)
    async with served(speaker) as ports, client(ports) as stub:
        for call in (
            stub.Tokenize(pb.TokenizeRequest(audio=CLIP.read_bytes())),
            stub.AddVoice(pb.AddVoiceRequest(name="eve", clip=CLIP.read_bytes())),
        ):
            code, details = await status_of(call)
            assert code == grpc.StatusCode.FAILED_PRECONDITION and "serve.front_end" in details


async def test_health_and_reflection_answer(speaker):
    async with (
        served(speaker) as ports,
        grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        for name in ("", "duologue.v1.Speech"):
            answer = await check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = [a async for a in stub.ServerReflectionInfo(iter([asked]))]
        names = {service.name for service in answer.list_services_response.service}
        assert "duologue.v1.Speech" in names
