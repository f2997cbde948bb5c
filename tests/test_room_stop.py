"""How a room stops: new callers are told, the sentence that is being said is heard to its end."""

import asyncio
import os
import signal
import time

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bots.last_words import LastWords
from bots.rehearse import room_server
from bots.stopping import DrainingServer
from duologue.addresses import listen
from duologue.config import BotConfig, LimitsConfig
from tests import room_callers
from tests.room_callers import Browser, active, speak, until_active

browser, open_room, sessions = (
    room_callers.browser,
    room_callers.open_room,
    room_callers.sessions,
)
TWO_SENTENCES = "one two three four five six. " + " ".join(["seven"] * 40) + "."


def said(words: LastWords, text: str, heard: int) -> None:
    words.note({"type": "bot_text", "turn": 1, "text": text})
    words.note({"type": "bot_heard", "turn": 1, "chars": heard})


@pytest.mark.parametrize(
    ("text", "heard", "more"),
    [
        ("One. Two three. Four.", 8, 14),
        ("One. Two three. Four.", 3, 4),
        ('He said "no." Then he left.', 4, 11),
        ("Pi is 3.14 or so. Yes.", 9, 16),
        ("你好。今天很好。", 1, 2),
    ],
)
async def test_a_sentence_is_over_when_its_last_word_was_heard(text, heard, more):
    words = LastWords()
    words.note({"type": "state", "turn": 1, "state": "speaking"})
    said(words, text, heard)
    waiting = asyncio.create_task(words.said(5))
    await asyncio.sleep(0)
    if more > heard + 1:
        said(words, text, more - 2)
        await asyncio.sleep(0)
        assert not waiting.done()
    said(words, text, more)
    assert await waiting


@pytest.mark.parametrize("state", ["listening", "hearing", "thinking", "tool"])
async def test_a_silent_bot_has_nothing_to_finish(state):
    words = LastWords()
    words.note({"type": "state", "turn": 0, "state": state})
    assert await words.said(5)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "bot_end", "turn": 1, "reason": "interrupted", "chars": 3},
        {"type": "state", "turn": 1, "state": "hearing"},
        {"type": "bot_text", "turn": 2, "text": "another"},
    ],
)
async def test_nothing_more_is_waited_for_when_the_answer_is_over(event):
    words = LastWords()
    words.note({"type": "state", "turn": 1, "state": "speaking"})
    said(words, "no end in sight", 2)
    waiting = asyncio.create_task(words.said(5))
    await asyncio.sleep(0)
    words.note({"type": "bot_text", "turn": 1, "text": "no end in sight."})
    words.note(event)
    assert await waiting
    assert not await words.said(0) or event["type"] != "bot_text"


async def test_the_last_sentence_is_heard_and_new_callers_are_told(open_room, browser, sessions):
    """Report J6: the tail is heard before the call ends."""
    async with open_room() as client:
        caller = browser()
        await caller.call(client)
        await caller.next("state")
        await speak(sessions[0], TWO_SENTENCES)
        await caller.next("bot_heard")
        draining = asyncio.create_task(client.room.drain())
        await asyncio.sleep(0)
        refused = await browser().offer(client)
        assert refused.status_code == 503
        assert "closing" in refused.json()["detail"]
        heard = 0
        while (message := await asyncio.wait_for(caller.messages.get(), 10))["type"] != "bye":
            heard = message["chars"] if message["type"] == "bot_heard" else heard
        assert message["reason"] == "The room is closing."
        assert TWO_SENTENCES[:heard].startswith("one two three four five six")
        assert "seven seven seven" not in TWO_SENTENCES[:heard]
        await draining
        assert await active(client) == 0


async def test_calls_may_go_on_while_the_room_drains(open_room, browser):
    limits = LimitsConfig(sessions=2, drain_s=20)
    async with open_room(BotConfig(limits=limits)) as client:
        callers = [browser(), browser()]
        for caller in callers:
            await caller.call(client)
            await caller.next("state")
        draining = asyncio.create_task(client.room.drain())
        await callers[0].pc.close()
        await until_active(client, 1)
        assert not draining.done()
        assert callers[1].messages.empty()
        await callers[1].pc.close()
        await asyncio.wait_for(draining, 10)


async def test_a_server_answers_while_it_drains():
    ended, begun = asyncio.Event(), asyncio.Event()

    async def drain() -> None:
        begun.set()
        await ended.wait()

    sock = listen("127.0.0.1", 0)
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("closing", 503))])
    server = DrainingServer(uvicorn.Config(app, log_level="warning"), drain)
    serving = asyncio.create_task(server.serve([sock]))
    host, port = sock.getsockname()
    patient = httpx.AsyncHTTPTransport(retries=5)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", transport=patient) as client:
        assert (await client.get("/")).status_code == 503
        os.kill(os.getpid(), signal.SIGTERM)
        await begun.wait()
        assert (await client.get("/")).text == "closing"
        assert not serving.done()
        ended.set()
    await asyncio.wait_for(serving, 5)


@pytest.mark.timeout(240)
async def test_sigterm_stops_the_real_server_within_five_seconds(browser):
    with room_server() as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            caller: Browser = browser()
            await caller.call(client)
            await caller.next("state")
            # A second one on the line who never connects must not hold it up.
            assert (await browser().offer(client)).status_code == 200
            began = time.monotonic()
            os.kill(server.process.pid, signal.SIGTERM)
            assert (await caller.next("bye"))["reason"] == "The room is closing."
        code = await asyncio.to_thread(server.process.wait, 10)
        assert time.monotonic() - began < 5
        assert code == 0, server.log()
