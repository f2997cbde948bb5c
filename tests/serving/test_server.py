"""The server as a whole: TLS, tokens, its end, its set-up, its command."""

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from duologue.config import BotConfig, ServeConfig, TalkerSection, Token2wavSection
from duologue.errors import ConfigError, UsageError
from duologue.lm.engine import Finish, Ids
from duologue.serving import speech_pb2 as pb
from duologue.serving import speech_pb2_grpc as stubs
from duologue.serving.grpc_server import GrpcServer
from duologue.serving.load import load_speaker
from duologue.serving.server import TOKEN as TOKEN_NAME
from duologue.serving.server import check_tls, check_token, run
from duologue.serving.talker import Talker
from duologue.token2wav.weights import load_preset, save
from duologue.training.pack import pack
from tests.embedded.tiny import CARD, SOUNDS, SPEAKER, decoder, talker
from tests.fakes import FakeEngine, FakeVoice
from tests.serving.servers import TOKEN, client, heard, limits, served, start, text, tokens
from tests.test_speech_lm import COSYVOICE2, ids_of
from tests.voice_models import write_voice_models


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    certificate.private_key_pem.write_to_path(key)
    for part in certificate.cert_chain_pems:
        part.write_to_path(cert, append=True)
    return {"tls_cert": cert, "tls_key": key}


async def test_tls_on_both_ways_in(make_speaker, authority, tls):
    speaker = make_speaker(piper=FakeVoice(), **tls)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with served(speaker, "secret") as ports:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        async with grpc.aio.secure_channel(f"localhost:{ports.grpc}", credentials) as channel:
            call = stubs.SpeechStub(channel).Synthesize(
                iter([start(), text("Hi.")]), metadata=[("authorization", "Bearer secret")]
            )
            assert len(await heard(call)) > 0
        async with httpx.AsyncClient(verify=trust) as web:
            answer = await web.get(f"https://127.0.0.1:{ports.http}/health")
            assert answer.status_code == 200
        async with client(ports) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.ListVoices(pb.ListVoicesRequest(), timeout=10)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_without_the_token_only_health_answers(speaker):
    async with (
        served(speaker, "secret") as ports,
        grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel,
    ):
        stub = stubs.SpeechStub(channel)
        for given in ([], [("authorization", "secret")], [("authorization", "Bearer wrong")]):
            for call in (
                stub.ListVoices(pb.ListVoicesRequest(), metadata=given),
                stub.Synthesize(metadata=given).read(),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call
                assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        right = [("authorization", "Bearer secret")]
        assert (await stub.ListVoices(pb.ListVoicesRequest(), metadata=right)).voices
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (await check(health_pb2.HealthCheckRequest())).status


@pytest.mark.parametrize(
    ("host", "token", "says"),
    [
        ("0.0.0.0", "", f"can be reached by others: set {TOKEN_NAME}"),
        ("::", "", "can be reached by others"),
        ("speech.example", "", "can be reached by others"),
        ("127.0.0.1", "geheim\u00fc", "expected ASCII"),
    ],
)
def test_nobody_serves_others_without_a_token(host, token, says):
    with pytest.raises(UsageError, match=says):
        check_token(ServeConfig(host=host), {TOKEN_NAME: token})


def test_tokens_that_do(caplog):
    for host in ("127.0.0.1", "::1", "localhost"):
        assert check_token(ServeConfig(host=host), {}) == ""
    assert not caplog.text
    assert check_token(ServeConfig(host="0.0.0.0"), {TOKEN_NAME: "x"}) == "x"
    assert "plain text" in caplog.text


def test_tls_files_that_do_not_fit(tls, tmp_path):
    with pytest.raises(ConfigError, match="found one, expected both"):
        check_tls(ServeConfig(tls_cert=tls["tls_cert"]))
    (tmp_path / "bad.pem").write_text("rubbish")
    for bad in (tmp_path / "bad.pem", tmp_path / "none.pem", tls["tls_cert"]):
        with pytest.raises(ConfigError, match="expected PEM files of a certificate"):
            check_tls(ServeConfig(tls_cert=tls["tls_cert"], tls_key=bad))


async def test_at_its_end_calls_go_on_and_new_ones_are_refused(make_speaker, instant):
    speaker = make_speaker(batcher=instant, drain_s=20)
    ports, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(run(speaker, sock, stop, ready=ports.set_result))
    async with client(await ports) as stub, client(await ports) as other:
        call = stub.Synthesize()
        await call.write(start())
        await call.write(tokens([1]))
        assert (await call.read()).pcm
        stop.set()
        await speaker.stopping.wait()
        refused = other.Synthesize()
        await refused.write(start())
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await refused.read()
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert error.value.details() == "the server is stopping; try another one"
        await call.write(tokens([2]))
        await call.done_writing()
        assert len(await heard(call)) == TOKEN
    async with asyncio.timeout(10):
        await running
    assert [await speaker.outcome() for _ in range(2)] == ["Stopping", "done"]


async def test_at_its_end_a_call_that_goes_on_is_ended(make_speaker, instant):
    speaker = make_speaker(batcher=instant, drain_s=0.2)
    async with served(speaker) as ports:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}")
        call = stubs.SpeechStub(channel).Synthesize()
        await call.write(start())
        await call.initial_metadata()
    async with channel:
        assert await speaker.outcome() != "done" and speaker.active == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


async def test_two_servers_do_not_share_a_port(speaker):
    async with served(speaker) as ports:
        with pytest.raises(UsageError, match="cannot be listened on; choose another"):
            GrpcServer(speaker, limits(grpc_port=ports.grpc))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_voice_models(folder)
    save(load_preset("tiny", 3), folder)
    return folder


async def test_a_set_up_with_token2wav_and_no_piper(model, store):
    section = Token2wavSection(model=model, engine="torch", voice="ada", sessions=2)
    config = BotConfig(token2wav=section, serve=limits(piper=False))
    speaker = await load_speaker(config, store)
    try:
        async with served(speaker) as ports, client(ports) as stub:
            assert len(await heard(stub.Synthesize(iter([start(), tokens([1, 2])])))) == 2 * TOKEN
            [voice] = (await stub.ListVoices(pb.ListVoicesRequest())).voices
            assert (voice.name, voice.takes_tokens, voice.takes_text) == ("ada", True, False)
            assert (await stub.Tokenize(pb.TokenizeRequest(audio=b"")).code()).name
    finally:
        await speaker.close()


@pytest.mark.slow
async def test_a_set_up_with_the_embedded_talker_and_token2wav(tmp_path, store, caplog):
    folder = tmp_path / "embedded"
    pack(talker(), decoder(), SPEAKER, folder, card=CARD, sounds=SOUNDS)
    config = BotConfig.model_validate(
        {
            "talker": {"engine": "embedded", "max_tokens": 20},
            "token2wav": {"engine": "embedded", "model": folder},
            "serve": {"piper": False, "grpc_port": 0},
        }
    )
    speaker = await load_speaker(config, store)
    try:
        async with served(speaker) as ports, client(ports) as stub:
            call = stub.Synthesize(iter([start(), tokens([1, 2])]))
            started = (await call.read()).started
            assert (started.engine, started.voice) == ("token2wav", "embedded")
            await heard(call)
            # A talker of random weights never ends by itself.
            with pytest.raises(grpc.aio.AioRpcError, match="an engine failed"):
                await heard(stub.Synthesize(iter([start(), text("Hello.")])))
            assert "breaks off" in caplog.text
            [own, other] = (await stub.ListVoices(pb.ListVoicesRequest())).voices
            assert (own.name, own.builtin, own.takes_text) == ("embedded", True, True)
            assert other.problem.startswith("made with")
    finally:
        await speaker.close()


async def test_the_embedded_voice_says_a_seed_alike_and_english_only(store):
    config = BotConfig.model_validate(
        {
            "talker": {"engine": "embedded"},
            "token2wav": {"engine": "embedded"},
            "serve": {"piper": False, "grpc_port": 0},
        }
    )
    speaker = await load_speaker(config, store)
    try:
        async with served(speaker) as ports, client(ports) as stub:

            async def say(words: str = "Oh, hello.", **options) -> np.ndarray:
                asked = start(**options), text(words)
                return (await heard(stub.Synthesize(iter(asked)))).astype(int)

            one, *others = [await say(seed=7), *await asyncio.gather(say(seed=7), say(seed=7))]
            for other in others:
                # Beside others a step is of another batch: equal up to rounding.
                assert len(other) == len(one) > 0 and np.abs(other - one).max() < 100
            assert not np.array_equal(await say(seed=8), one)
            russian = "Сегодня очень хорошая погода на улице, не правда ли. "
            assert (
                len(await say(russian + "It is a fine day, and the sun is out.", seed=7)) > 24_000
            )
            with pytest.raises(grpc.aio.AioRpcError, match="nothing to say"):
                await say(russian)
            with pytest.raises(grpc.aio.AioRpcError, match="speaks English: found lang 'zh'"):
                await say(lang="zh")
    finally:
        await speaker.close()


async def test_a_set_up_that_cannot_speak_is_refused():
    with pytest.raises(ConfigError, match="nothing can speak"):
        await load_speaker(BotConfig(serve=limits(piper=False)))


async def test_a_talker_says_text_in_a_stored_voice(make_speaker, instant, store):
    said = [Ids(tuple(ids_of(COSYVOICE2, *range(n, n + 20), "<|eos1|>"))) for n in (1, 101)]
    engine = FakeEngine(said[:1], said[1:])
    config = TalkerSection(
        family="cosyvoice2-merged", base_url="http://127.0.0.1/v1", model="m", clip_text="Hello."
    )
    reader = Talker(engine, COSYVOICE2, config, "ada")
    speaker = make_speaker(batcher=instant, piper=FakeVoice(), talker=reader)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize(
            iter([start(), text("The sea (laughs) is deep. So is"), text(" it.")])
        )
        assert len(await heard(call)) == 40 * TOKEN
    assert instant.tokens == [*range(1, 21), *range(101, 121)]
    assert len(engine.requests) == engine.closed == 2
    clip = store.get("ada").tokens.tolist()
    prompt = list(engine.requests[0].parts[0].ids)
    assert prompt[-len(clip) :] == ids_of(COSYVOICE2, *clip)


async def test_a_clause_whose_speech_breaks_off_ends_the_call(make_speaker, instant, caplog):
    said = [Ids(tuple(ids_of(COSYVOICE2, *range(1, 21)))), Finish("length")]
    config = TalkerSection(family="cosyvoice2-merged", base_url="http://127.0.0.1/v1", model="m")
    reader = Talker(FakeEngine(said), COSYVOICE2, config, "ada")
    speaker = make_speaker(batcher=instant, talker=reader)
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize(iter([start(), text("The sea is deep.")]))
        with pytest.raises(grpc.aio.AioRpcError, match="an engine failed"):
            await heard(call)
    assert "breaks off" in caplog.text and "sea" not in caplog.text


async def test_a_cancelled_call_aborts_the_talker(make_speaker, instant):
    gate = asyncio.Event()
    engine = FakeEngine([Ids(tuple(ids_of(COSYVOICE2, 1, 2, 3))), gate])
    config = TalkerSection(family="cosyvoice2-merged", base_url="http://127.0.0.1/v1", model="m")
    speaker = make_speaker(batcher=instant, talker=Talker(engine, COSYVOICE2, config, "ada"))
    async with served(speaker) as ports, client(ports) as stub:
        call = stub.Synthesize(iter([start(), text("The sea is deep.")]))
        assert (await call.read()).pcm
        call.cancel()
        assert await speaker.outcome() == "cancelled"
    assert (engine.closed, instant.cancelled) == (1, 1)


def test_the_generated_code_is_that_of_the_proto(tmp_path):
    pytest.importorskip("grpc_tools")
    root = Path(__file__).parents[2]
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    proto = "duologue/serving/speech.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, proto]
    subprocess.run(command, cwd=root, check=True)
    for made in (tmp_path / "duologue/serving").iterdir():
        assert made.read_text() == (root / "duologue/serving" / made.name).read_text(), "make proto"


async def test_the_command_serves_until_it_is_told_to_stop():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from duologue.cli import main; main()", "serve"),
        *("--grpc-port", "0", "--http-port", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            while b"The server is ready: gRPC on 127.0.0.1:" not in (
                line := await process.stderr.readline()
            ):
                assert line, "the server has ended"
            url = line.decode().split()[-1]
            async with httpx.AsyncClient(base_url=url) as web:
                body = {"input": "Hello.", "response_format": "wav"}
                assert (await web.post("/v1/audio/speech", json=body)).content[:4] == b"RIFF"
            process.send_signal(signal.SIGTERM)
            assert (await process.stderr.read()).endswith(b"The server is closed.\n")
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
