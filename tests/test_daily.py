"""A bot in a Daily room, over pipecat's transport and a scripted native client (fake_daily.py)."""

import asyncio
import inspect

import daily
import numpy as np
import pytest
from pipecat.transports.daily.transport import DailyInputTransport

from bots.daily import DailyBot
from bots.models import Models
from duologue.audio.pcm import to_int16_bytes
from duologue.config import BotConfig, DailyConfig, LimitsConfig, SpeechLmConfig, TurnConfig
from duologue.errors import ConfigError, EngineError
from duologue.lm.modes import Mode
from tests.fake_daily import FakeCallClient, FakeDailyRoom
from tests.fakes import FakeEngine, FakeVoice

URL = "https://test.daily.co/room"
FRAME = 320


def config(transcription: bool = False, **limits) -> BotConfig:
    return BotConfig(
        daily=DailyConfig(url=URL, name="Ada", transcription=transcription),
        limits=LimitsConfig(**limits),
        turn=TurnConfig(end="speech-timeout", silence_s=0.4),
    )


@pytest.fixture
def room(monkeypatch) -> FakeDailyRoom:
    cloud = FakeDailyRoom()
    cloud.install(monkeypatch)
    return cloud


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(["Paris is the capital. It is on the Seine."])


@pytest.fixture
async def start(whisper, engine, room):
    """Starts a bot, and stops it at the end."""
    running: list[tuple[DailyBot, asyncio.Task[None]]] = []

    def started(settings: BotConfig) -> asyncio.Task[None]:
        bot = DailyBot(Models(whisper, engine, FakeVoice(0.1)), settings, "token")
        running.append((bot, asyncio.create_task(bot.run())))
        started.bot = bot  # type: ignore[attr-defined]
        return running[-1][1]

    yield started
    for bot, task in running:
        if not task.done():
            await bot.drain()
        await asyncio.gather(task, return_exceptions=True)


async def happens(room: FakeDailyRoom, condition) -> object:
    return await asyncio.to_thread(room.wait_for, condition)


def listening_to(room: FakeDailyRoom, name: str):
    """The client that has told `name` that it listens, once it has."""

    def found():
        client = room.joined
        told = client and any(to == name for m, to in client.messages if m["type"] == "state")
        return client if told else None

    return found


async def ask(client: FakeCallClient, name: str, speech: np.ndarray) -> None:
    """Say something in real time, and a second and a half of silence after it."""
    sound = np.concatenate([speech, np.zeros(24_000, np.float32)])
    for at in range(0, len(sound), FRAME):
        client.speak(name, to_int16_bytes(sound[at : at + FRAME]))
        await asyncio.sleep(0.02)


async def test_it_joins_with_its_token_and_name_and_leaves(room, start):
    running = start(config())
    client = await happens(room, lambda: room.joined)
    assert (client.url, client.token, client.name) == (URL, "token", "Ada")
    await start.bot.drain()
    await asyncio.wait_for(running, 10)
    assert client.state == "left"
    assert client.released


async def test_a_spoken_question_is_answered_by_voice(room, start, engine, say):
    start(config())
    room.come("ann")
    client = await happens(room, listening_to(room, "ann"))
    await ask(client, "ann", say("What is the capital of France?"))
    await happens(room, lambda: client.of("bot_end"))
    assert "capital of France" in engine.requests[0].messages[-1]["content"]
    assert client.of("bot_end")[0]["reason"] == "done"
    # FakeVoice says 0.1 s for each of the nine words, at 24 kHz.
    assert np.count_nonzero(np.frombuffer(client.heard, "<i2")) >= 9 * 2400 * 0.9
    assert {to for _, to in client.messages} == {"ann"}


async def test_dailys_transcription_in_place_of_the_recogniser(room, start, engine, say):
    start(config(transcription=True))
    room.come("ann")
    client = await happens(room, listening_to(room, "ann"))
    await happens(room, lambda: client.transcribed == ["ann"])
    room.come("bob")
    client.transcript("bob", "Nobody asked me.")
    client.transcript("ann", "What is", final=False)
    asking = asyncio.create_task(ask(client, "ann", say("What is the capital of France?")))
    await happens(room, lambda: client.of("state")[-1]["state"] == "hearing")
    client.transcript("ann", "These words are Daily's.")
    await asking
    await happens(room, lambda: client.of("bot_text"))
    assert engine.requests[0].messages[-1]["content"] == "These words are Daily's."


async def test_people_one_after_another_and_one_at_a_time(room, start):
    running = start(config())
    room.come("ann")
    first = await happens(room, listening_to(room, "ann"))
    room.come("bob")
    room.go("ann")
    second = await happens(room, listening_to(room, "bob"))
    assert first is not second
    assert first.state == "left"
    await happens(room, lambda: second.renderers)
    assert set(first.renderers) == {"ann"}
    assert set(second.renderers) == {"bob"}
    room.go("bob")
    await happens(room, lambda: room.joined not in (None, second))
    assert not running.done()


async def test_messages_of_others_and_oversized_ones_are_not_taken(room, start, monkeypatch):
    taken: list[dict] = []

    async def keep(_, message, sender):
        taken.append(message)

    monkeypatch.setattr(DailyInputTransport, "push_app_message", keep)
    start(config(message_bytes=256))
    room.come("ann")
    client = await happens(room, listening_to(room, "ann"))
    heard = start.bot.conversation.transport.input()
    room.come("bob")
    for message, sender in [
        ({"type": "playback", "buffer_ms": 10}, "bob"),
        ({"type": "x" * 300}, "ann"),
        ({"type": "playback", "buffer_ms": 20}, "ann"),
    ]:
        client.event("on_app_message", message, sender)
    done = asyncio.Event()
    client.later(asyncio.get_running_loop().call_soon_threadsafe, done.set)
    await done.wait()
    await heard._client._event_queue.join()
    assert taken == [{"type": "playback", "buffer_ms": 20}]
    assert heard.messages.refused == 1


async def test_a_call_that_has_lasted_its_time_is_not_begun_again(room, start):
    start(config(session_s=0.2))
    room.come("ann")
    first = await happens(room, listening_to(room, "ann"))
    second = await happens(room, lambda: room.joined if room.joined not in (None, first) else None)
    assert "0.00333333 minutes" in first.of("bye")[0]["reason"]
    room.come("bob")
    await happens(room, lambda: second.renderers)
    assert set(second.renderers) == {"bob"}


async def test_a_room_that_cannot_be_joined(room, start):
    room.join_error = "meeting token is not valid"
    with pytest.raises(EngineError, match="meeting token is not valid.*DUOLOGUE_DAILY_TOKEN"):
        await asyncio.wait_for(start(config()), 20)


async def test_a_bot_that_is_thrown_out_says_so(room, start):
    running = start(config())
    room.come("ann")
    client = await happens(room, listening_to(room, "ann"))
    client.eject()
    with pytest.raises(EngineError, match="taken out of the room"):
        await asyncio.wait_for(running, 20)


def test_what_cannot_join_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="daily.url"):
        DailyBot(None, BotConfig(), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="DUOLOGUE_DAILY_TOKEN"):
        DailyBot(None, config(transcription=True), None)  # type: ignore[arg-type]
    hears = SpeechLmConfig(family="step-audio2", base_url="x", model="m", mode=Mode("A1-T2"))
    both = config(transcription=True).model_copy(update={"speech_lm": hears})
    with pytest.raises(ConfigError, match="A1-T2 takes the sound itself"):
        DailyBot(None, both, "token")  # type: ignore[arg-type]


def test_the_fake_has_the_methods_of_the_real_client():
    ours = {name for name, _ in inspect.getmembers(FakeCallClient, inspect.isfunction)}
    scripted = {"speak", "transcript", "eject", "of", "event", "later"}
    assert {name for name in ours if name[0] != "_"} - scripted <= set(dir(daily.CallClient))
