"""However a call begins and ends, it leaves no task behind, and its line is free."""

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial

import pytest
from pipecat.workers.runner import WorkerRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bots import phone, phone_start
from tests.phone_calls import COUNT, dial, open_line, refusal, set_up, start

# Calls are made in real time, which a busy machine may miss.
pytestmark = pytest.mark.flaky(reruns=2)

SECOND = json.dumps({"event": "media", "media": {"payload": "/" * 10_664}})
TOO_FAST = "the stream sends faster than real time; send 20 ms every 20 ms"


def tasks() -> list[str]:
    """What pipelines have left running: their tasks' names are of a processor and its job."""
    return [name for task in asyncio.all_tasks() if "::" in (name := task.get_name())]


async def ended(line) -> None:
    """Wait for the line; nothing of the call may be left by then."""
    async with asyncio.timeout(10):
        await line.phone.lines._empty.wait()
    assert tasks() == []


async def test_a_call_may_end_at_any_moment_of_its_beginning(whisper, monkeypatch):
    """The pipeline is told to stop while one of its processors after the other starts."""
    run = WorkerRunner.run

    async def cut_short(runner, *args, steps: int, line, **kwargs):
        async def cut() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)
            for end in line.phone._ends:
                end.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(cut())
            await run(runner, *args, **kwargs)

    async with open_line(whisper) as line:
        for steps in range(1, 40, 3):
            cut = partial(cut_short, steps=steps, line=line)
            monkeypatch.setattr(WorkerRunner, "run", lambda *a, cut=cut, **k: cut(*a, **k))
            async with connect(f"{line.ws}/ws") as stream:
                for message in start():
                    await stream.send(json.dumps(message))
                await asyncio.wait_for(stream.wait_closed(), 10)
            await ended(line)


@pytest.mark.parametrize("flood", [SECOND, "nonsense", b"\x00" * 320])
@pytest.mark.parametrize("first_s", [0.0, 0.4])
async def test_a_flood_ends_the_call_and_the_line_is_free_before_the_stream_closes(
    whisper, flood, first_s
):
    """At the call's beginning, and while the bot speaks."""
    async with open_line(whisper, config=set_up(greeting=COUNT)) as line, AsyncExitStack() as calls:
        call = await calls.enter_async_context(dial(f"{line.ws}/ws"))
        await call.heard(first_s)
        try:
            for _ in range(1000):
                await call._line.send(flood)
        except ConnectionClosed:
            pass
        assert await asyncio.wait_for(call.closed, 10) == (1008, TOO_FAST)
        assert line.phone.lines.taken == 0
        await ended(line)


async def hang_up(line, call) -> None:
    await call.hang_up()


async def vanish(line, call) -> None:
    call._line.transport.abort()


async def say_stop(line, call) -> None:
    await call.send(event="stop", stop={})


async def stop_server(line, call) -> None:
    line.stop()


async def outlast(line, call) -> None:
    """Until the longest call is over."""


@pytest.mark.parametrize("end", [hang_up, vanish, say_stop, stop_server, outlast])
@pytest.mark.parametrize("speaks", ["bot", "user"])
async def test_the_ends_of_a_call_in_mid_speech(whisper, say, end, speaks):
    config = set_up(greeting="word " * 8 + "word." if speaks == "bot" else None, session_s=1)
    async with open_line(whisper, config=config) as line, dial(f"{line.ws}/ws") as call:
        if speaks == "bot":
            await call.heard(0.3)
        else:
            speech = asyncio.create_task(call.say(say("Tell me about the sea, please.")[8000:]))
            async with asyncio.timeout(10):
                while not any("WhisperASR" in name and "interims" in name for name in tasks()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            speech.cancel()
        await end(line, call)
        await ended(line)


async def test_streams_that_never_start_hold_no_line_and_the_oldest_gives_way(whisper):
    """Two mute ones, and one place."""
    config = set_up(greeting=COUNT, sessions=1, connecting=2)
    async with open_line(whisper, config=config) as line, AsyncExitStack() as streams:
        mute = [await streams.enter_async_context(connect(f"{line.ws}/ws")) for _ in range(2)]
        assert line.phone.lines.taken == 0
        async with dial(f"{line.ws}/ws") as call:
            await asyncio.wait_for(mute[0].wait_closed(), 5)
            assert (mute[0].close_code, mute[0].close_reason) == (
                1008,
                "expected the start message of a Twilio, Telnyx or Plivo stream, none came in time",
            )
            await call.heard(0.1)
            # The second one starts too late: the place is taken by now.
            for message in start("CA2"):
                await mute[1].send(json.dumps(message))
            await asyncio.wait_for(mute[1].wait_closed(), 5)
            assert mute[1].close_code == 1013 and "1 of 1" in (mute[1].close_reason or "")
        await ended(line)


async def test_many_mute_streams_at_once_are_bounded(whisper):
    async with open_line(whisper, config=set_up(connecting=3)) as line:
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(refusal(f"{line.ws}/ws")) for _ in range(30)]
            async with asyncio.timeout(10):
                while sum(end.done() for end in ends) < 27:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len(line.phone._lobby._waiting) == 3
            line.stop()
        codes = [end.result()[0] for end in ends]
        assert (codes.count(1008), codes.count(1012)) == (27, 3)


async def test_a_mute_stream_is_ended_in_time(whisper, monkeypatch):
    monkeypatch.setattr(phone_start, "START_S", 0.2)
    async with open_line(whisper) as line:
        code, reason = await asyncio.wait_for(refusal(f"{line.ws}/ws"), 5)
        assert (code, "none came in time" in (reason or "")) == (1008, True)


async def test_a_mute_stream_does_not_hold_up_the_end(whisper):
    async with open_line(whisper) as line, connect(f"{line.ws}/ws") as stream:
        line.stop()
        async with asyncio.timeout(3):
            await line.running
        await stream.wait_closed()
        assert stream.close_code == 1012


async def test_a_call_whose_pipeline_cannot_be_built(whisper, monkeypatch):
    async def fail(_):
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(phone, "load_listening", fail)
    async with open_line(whisper) as line, dial(f"{line.ws}/ws") as call:
        assert await asyncio.wait_for(call.closed, 5) == (1011, "The call could not be held.")
        await ended(line)


WANTED = "expected the start message of a Twilio, Telnyx or Plivo stream"
IDS = {"streamSid": "S1", "callSid": "C1"}


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("[1]", WANTED + ", found JSON that is no object"),
        ("null", WANTED + ", found JSON that is no object"),
        ("7", WANTED + ", found JSON that is no object"),
        ("", WANTED + ", found text that is no JSON"),
        ("{'event': 'start'}", WANTED + ", found text that is no JSON"),
        (b'{"event": "start"}', WANTED + " as text, found binary data"),
        ("{}", WANTED + ", found a message whose event cannot be read"),
        ('{"event": ["start"]}', WANTED + ", found a message whose event cannot be read"),
        ('{"event": "start"}', WANTED + ", found one without the ids of stream and call"),
        (
            '{"event": "start", "start": null}',
            WANTED + ", found one without the ids of stream and call",
        ),
        (
            '{"event": "start", "start": []}',
            WANTED + ", found a message whose start cannot be read",
        ),
        (
            json.dumps({"event": "start", "start": IDS | {"streamSid": ["S1"]}}),
            WANTED + ", found a message whose start.streamSid cannot be read",
        ),
        (
            json.dumps({"event": "start", "start": IDS | {"callSid": ""}}),
            WANTED + ", found a message whose start.callSid cannot be read",
        ),
        (
            json.dumps({"event": "start", "start": IDS | {"callSid": "\N{SNOWMAN}" * 1000}}),
            WANTED + ", found a message whose start.callSid cannot be read",
        ),
        (
            json.dumps(
                {
                    "event": "start",
                    "stream_id": "S1",
                    "start": {"call_control_id": "C1", "media_format": {"encoding": "L16"}},
                }
            ),
            "expected PCMU or PCMA, found another encoding; set it at Telnyx",
        ),
        ('{"event": "media", "media": {}}', WANTED + ", found other messages"),
    ],
)
async def test_a_malformed_start_is_told_in_words_of_our_own(whisper, message, found):
    async with open_line(whisper) as line, connect(f"{line.ws}/ws") as stream:
        for _ in range(phone_start.MESSAGES):
            try:
                await stream.send(message)
            except ConnectionClosed:
                break
        await asyncio.wait_for(stream.wait_closed(), 5)
        assert (stream.close_code, stream.close_reason) == (1008, found)
        assert line.phone.lines.taken == 0
