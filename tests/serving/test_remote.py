"""token2wav by URL on real servers: the same sound, whatever becomes of the one that speaks."""

import asyncio

import grpc
import numpy as np
import pytest
from pipecat.frames.frames import LLMFullResponseEndFrame
from pipecat.workers.runner import WorkerRunner

from duologue.errors import CapacityError, ConfigError, EngineError, InputError, UsageError
from duologue.serving import remote_server
from duologue.serving import speech_pb2 as pb
from duologue.serving.remote import RemoteBatcher
from duologue.serving.remote_call import HELD_BACK_TOKENS, Patience, _Watch
from duologue.serving.server import TOKEN as TOKEN_VARIABLE
from duologue.token2wav.batch import Said
from duologue.token2wav.config import TINY
from duologue.token2wav.stream import Schedule, UtteranceLog
from processors.frames import VoiceAudioFrame
from tests.serving.remote_servers import Ear, Killable, scripted
from tests.serving.servers import TOKEN
from tests.test_token2wav_service import Stage
from tests.test_token2wav_service import tokens as frame_of

SCHEDULE = Schedule((4, 6))
SEED = 9
QUICK = Patience(place_s=5, stall_s=0.5, search_s=5, tries=3)


@pytest.fixture
async def start(make_speaker, batcher):
    """Start servers with this model."""
    servers = []

    async def begin(token="", **own) -> Killable:
        servers.append(Killable(make_speaker(batcher=batcher, **own), token))
        await servers[-1].start()
        return servers[-1]

    yield begin
    for server in servers:
        await server.kill()


@pytest.fixture
def remote():
    """Batchers on these servers."""
    opened = []

    def make(*servers, patience=QUICK) -> RemoteBatcher:
        opened.append(
            RemoteBatcher([server.url for server in servers], config=TINY, patience=patience)
        )
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def voice(store):
    return store.get("ada")


async def begin(batcher, voice, ear, seed=SEED):
    return await asyncio.to_thread(batcher.open, voice, seed, ear.emit, SCHEDULE)


async def alone(batcher, voice, tokens) -> np.ndarray:
    """What the engine says in process."""
    ear = Ear()
    utterance = batcher.open(voice, SEED, ear.emit, SCHEDULE)
    utterance.push(tokens)
    utterance.finish()
    return await ear.rest()


async def test_it_says_what_the_engine_says_in_process(start, remote, batcher, voice, speech):
    tokens, ear = speech(1, 40), Ear()
    far = remote(await start())
    utterance = await begin(far, voice, ear)
    for at in range(0, 40, 7):
        utterance.push(tokens[at : at + 7])
    utterance.finish()
    samples = await ear.rest()
    assert (far.rate_hz, far.samples_per_token) == (24_000, TOKEN)
    assert len(samples) == 40 * TOKEN
    np.testing.assert_allclose(samples, await alone(batcher, voice, tokens), atol=1e-3)
    with pytest.raises(UsageError, match="over"):
        utterance.push(tokens)


async def test_a_server_that_dies_in_mid_sentence_is_not_heard(
    start, remote, batcher, voice, speech
):
    tokens, ear = speech(2, 60), Ear()
    first, second = await start(), await start()
    utterance = await begin(remote(first, second), voice, ear)
    utterance.push(tokens[:30])
    while ear.samples < 5 * TOKEN:
        await ear.sound()
    await first.kill()
    assert await first.speaker.outcome() != "done"
    utterance.push(tokens[30:])
    utterance.finish()
    samples = await ear.rest()
    assert len(samples) == 60 * TOKEN
    np.testing.assert_allclose(samples, await alone(batcher, voice, tokens), atol=1e-3)
    assert await second.speaker.outcome() == "done"


async def test_a_server_that_hangs_is_left_too(start, remote, batcher, voice, speech):
    tokens, ear = speech(3, 20), Ear()

    async def hangs(requests, context):
        yield pb.SynthesizeResponse(pcm=b"")
        await asyncio.Event().wait()

    async with scripted(voice.digest, hangs) as stuck:
        utterance = await begin(remote(stuck, await start()), voice, ear)
        utterance.push(tokens)
        utterance.finish()
        np.testing.assert_allclose(await ear.rest(), await alone(batcher, voice, tokens), atol=1e-3)
        assert stuck.calls == 1


async def test_only_sound_that_is_due_can_be_late():
    log = UtteranceLog("ada", SEED, SCHEDULE, [])
    async with asyncio.timeout(None) as limit:
        await asyncio.sleep(0)
        watch = _Watch(log, TINY, 60, limit)
        watch.send(6 + TINY.look_ahead + HELD_BACK_TOKENS)
        assert limit.when() is None
        watch.send(1)
        since = limit.when()
        watch.send(1)
        assert limit.when() == since is not None
        watch.hear(2 * TOKEN)
        assert limit.when() is None
        watch.finish()
        assert limit.when() is not None


async def test_what_breaks_every_server_is_not_sent_round_for_ever(remote, voice, speech):
    async def dies(requests, context):
        await anext(requests)
        # Tokens come once the client knows that it has a place.
        await anext(requests)
        await context.abort(grpc.StatusCode.INTERNAL, "an engine failed; its log says why")
        yield

    async with scripted(voice.digest, dies) as one, scripted(voice.digest, dies) as two:
        ear = Ear()
        utterance = await begin(remote(one, two), voice, ear)
        utterance.push(speech(1, 9))
        with pytest.raises(EngineError, match="an engine failed"):
            await ear.rest()
        assert one.calls + two.calls == QUICK.tries


async def test_full_servers_refuse_at_once_and_a_free_one_is_found(start, remote, voice, speech):
    full, free = await start(sessions=1), await start(sessions=1)
    far = remote(full, free, patience=Patience(place_s=60))
    ears = [Ear() for _ in range(3)]
    taken = [await begin(far, voice, ear) for ear in ears[:2]]
    with pytest.raises(CapacityError, match="all 1 places are taken.*more replicas"):
        async with asyncio.timeout(20):
            await begin(far, voice, ears[2])
    for utterance, ear in zip(taken, ears, strict=False):
        utterance.push(speech(1, 5))
        utterance.finish()
        assert len(await ear.rest()) == 5 * TOKEN


async def test_utterances_begin_on_the_servers_in_turn(start, remote, voice):
    servers = [await start() for _ in range(2)]
    far = remote(*servers)
    for _ in range(4):
        await begin(far, voice, Ear())
    assert [server.speaker.active for server in servers] == [2, 2]


async def test_a_sentence_waits_for_a_place_when_its_server_dies(
    start, remote, batcher, voice, speech
):
    tokens, ear, other = speech(5, 30), Ear(), Ear()
    first, second = await start(), await start(sessions=1)
    utterance = await begin(remote(first, second), voice, ear)
    blocking = await begin(remote(second), voice, other)
    utterance.push(tokens)
    await ear.sound()
    await first.kill()
    refused = {await second.speaker.outcome() for _ in range(4)}
    blocking.cancel()
    utterance.finish()
    np.testing.assert_allclose(await ear.rest(), await alone(batcher, voice, tokens), atol=1e-3)
    assert refused == {"CapacityError"}


async def test_cancelling_ends_the_work_there_and_the_sound_here(start, remote, voice, speech):
    ear, server = Ear(), await start()
    utterance = await begin(remote(server), voice, ear)
    utterance.push(speech(1, 40))
    await ear.sound()
    utterance.cancel()
    utterance.cancel()
    while not ear.silent:
        ear.next()
    assert await server.speaker.outcome() == "cancelled"
    # What was on its way when it was cancelled.
    utterance._emit(Said(np.zeros(9, np.float32), False, 0.0, 0.0))
    assert server.speaker.active == 0 and ear.silent
    with pytest.raises(UsageError, match="over"):
        utterance.finish()


async def test_closing_ends_every_utterance(start, remote, voice, speech):
    ear, server = Ear(), await start()
    far = remote(server)
    utterance = await begin(far, voice, ear)
    utterance.push(speech(1, 40))
    await ear.sound()
    await asyncio.to_thread(far.close)
    while not ear.silent:
        ear.next()
    assert await server.speaker.outcome() == "cancelled"
    with pytest.raises(UsageError, match="over"):
        utterance.push(speech(1, 4))
    with pytest.raises(UsageError, match="closed"):
        far.open(voice, 1, ear.emit)
    assert ear.silent


async def test_a_listener_that_fails_ends_its_own_utterance(start, remote, voice, speech):
    server = await start()
    far, ear = remote(server), Ear()

    def fails(said):
        raise RuntimeError("no ear")

    deaf = await asyncio.to_thread(far.open, voice, 1, fails, SCHEDULE)
    deaf.push(speech(1, 40))
    assert await server.speaker.outcome() == "cancelled"
    utterance = await begin(far, voice, ear)
    utterance.push(speech(1, 4))
    utterance.finish()
    assert len(await ear.rest()) == 4 * TOKEN


async def test_no_tokens_are_no_sound_and_no_error(start, remote, voice):
    ear = Ear()
    utterance = await begin(remote(await start()), voice, ear)
    utterance.finish()
    assert not len(await ear.rest())


async def test_a_wrong_token_is_refused_and_spares_the_rest(start, remote, voice, speech):
    ear = Ear()
    utterance = await begin(remote(await start()), voice, ear)
    with pytest.raises(InputError, match="6561"):
        utterance.push(np.array([3, 6561]))
    utterance.push(speech(1, 4))
    utterance.finish()
    assert len(await ear.rest()) == 4 * TOKEN


async def test_a_voice_that_no_server_has_is_named(start, remote, voice):
    server = await start()
    server.speaker.voices._store.delete("ada")
    with pytest.raises(InputError, match=f"{voice.digest[:12]}.*none.*DUOLOGUE_VOICES"):
        await begin(remote(server), voice, Ear())


async def test_another_voice_of_the_same_name_is_not_spoken_with(
    start, remote, batcher, voice, speech
):
    tokens, ear = speech(1, 4), Ear()
    async with scripted(voice.digest, _of_another_voice) as replaced:
        utterance = await begin(remote(replaced, await start()), voice, ear)
        utterance.push(tokens)
        utterance.finish()
        np.testing.assert_allclose(await ear.rest(), await alone(batcher, voice, tokens), atol=1e-3)
        assert replaced.calls == 1


async def _of_another_voice(requests, context):
    await anext(requests)
    await anext(requests)
    started = pb.SynthesizeStarted(rate_hz=24_000, voice="ada", voice_digest="another")
    yield pb.SynthesizeResponse(started=started, pcm=b"\0" * 400)


async def test_another_rate_is_told_apart_from_a_fault(remote, voice, speech):
    async def slow(requests, context):
        started = pb.SynthesizeStarted(rate_hz=16_000, voice_digest=voice.digest)
        yield pb.SynthesizeResponse(started=started, pcm=b"\0" * 400)

    async with scripted(voice.digest, slow) as server:
        ear = Ear()
        utterance = await begin(remote(server), voice, ear)
        utterance.push(speech(1, 4))
        with pytest.raises(ConfigError, match="16000.*expected 24000"):
            await ear.rest()


async def test_the_token_goes_with_every_call(start, remote, voice, speech, monkeypatch):
    server = await start(token="secret")
    with pytest.raises(ConfigError, match="authorization"):
        await begin(remote(server), voice, Ear())
    assert remote_server.TOKEN == TOKEN_VARIABLE
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    ear = Ear()
    utterance = await begin(remote(server), voice, ear)
    utterance.push(speech(1, 4))
    utterance.finish()
    assert len(await ear.rest()) == 4 * TOKEN


async def test_nobody_there_is_said_soon(start, remote, voice):
    server = await start()
    await server.kill()
    with pytest.raises(EngineError, match="cannot be reached"):
        await begin(remote(server, patience=Patience(place_s=0.3)), voice, Ear())


async def test_the_bots_stage_speaks_through_it(start, remote, voice):
    first, second = await start(), await start()
    stage = Stage(remote(first, second), 24_000)
    stage.service._voice = voice
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(stage.worker)
    running = asyncio.create_task(runner.run())
    try:
        await stage.begin(1)
        await stage.say(frame_of(1, 40))
        await stage.wait_for(VoiceAudioFrame)
        await first.kill()
        await stage.say(frame_of(2, 20))
        await stage.say(LLMFullResponseEndFrame())
        await stage.wait_for(LLMFullResponseEndFrame)
    finally:
        await stage.worker.cancel()
        await running
    assert sum(len(frame.audio) // 2 for frame in stage.of(VoiceAudioFrame)) == 60 * TOKEN
    assert not stage.errors


@pytest.mark.parametrize("urls", [[], ["127.0.0.1:9000"], ["http://a:1"], ["grpc://a:1/x"]])
def test_urls_are_checked_first(urls):
    with pytest.raises(ConfigError, match=r"expected grpc://HOST:PORT"):
        RemoteBatcher(urls)
