"""Public reports on rooms, turned into tests: groups F, H, I and J."""

import asyncio
import ctypes
import gc
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from aiortc.rtcsctptransport import SCTP_DATA_FIRST_FRAG, DataChunk, tsn_plus_one

from duologue.config import BotConfig, LimitsConfig, RoomConfig
from tests import room_callers
from tests.room_callers import Browser, active, speak, until_active

browser, open_room, sessions = (
    room_callers.browser,
    room_callers.open_room,
    room_callers.sessions,
)
LONG = " ".join(["word"] * 200) + "."


async def arrivals(caller, seconds: float) -> list[float]:
    """When frames of the bot's sound reached the caller, in loop seconds."""
    loop, times = asyncio.get_running_loop(), []
    track = caller.pc.getReceivers()[0].track
    until = loop.time() + seconds
    while loop.time() < until:
        await track.recv()
        times.append(loop.time())
    return times


@pytest.mark.slow
async def test_f1_fifty_calls_leave_nothing_behind(open_room):
    """pipecat #3750, #3116: memory, tasks and sockets grow with every call."""
    process, held = psutil.Process(), []
    async with open_room(BotConfig(limits=LimitsConfig(calls_per_minute=6000))) as client:
        for _ in range(50):
            caller = Browser()
            await caller.call(client)
            await caller.next("state")
            await caller.pc.close()
            await until_active(client, 0)
            del caller
            gc.collect()
            # What the allocator keeps for later is no leak.
            ctypes.CDLL(None).malloc_trim(0)
            held.append(
                (
                    process.memory_info().rss,
                    len(gc.get_objects()),
                    len(asyncio.all_tasks()),
                    process.num_fds(),
                )
            )
    early, late = np.median(held[20:30], axis=0), np.median(held[40:], axis=0)
    rss, objects, tasks, sockets = late - early
    assert rss < 6e6
    assert objects < 100
    assert (tasks, sockets) == (0, 0)


async def test_f7_a_peer_that_hangs_up_is_gone_within_two_seconds(open_room, browser, sessions):
    """pipecat #4578, #4723: half-closed connections keep a session alive."""
    async with open_room() as client:
        caller = browser()
        await caller.call(client)
        await caller.next("state")
        await speak(sessions[0], LONG)
        await caller.next("bot_heard")
        began = time.monotonic()
        await caller.pc.close()
        await until_active(client, 0)
        assert time.monotonic() - began < 2


@pytest.mark.flaky(reruns=2)
async def test_h3_a_thousand_connects_are_bounded_and_harm_nobody(open_room, browser, sessions):
    limits = LimitsConfig(sessions=1, connecting=2, calls_per_minute=20, last_words_s=0)
    async with open_room(BotConfig(limits=limits)) as client:
        caller, junk = browser(), browser()
        await junk.offer(client)
        sdp = junk.pc.localDescription.sdp
        await caller.call(client)
        await caller.next("state")
        await speak(sessions[0], LONG)
        await caller.next("bot_heard")
        before = psutil.Process().memory_info().rss

        async def flood() -> list[int]:
            body = {"sdp": sdp, "type": "offer"}
            return [(await client.post("/api/offer", json=body)).status_code for _ in range(1000)]

        codes, times = await asyncio.gather(flood(), arrivals(caller, 2))
        assert set(codes) <= {429, 503}
        assert psutil.Process().memory_info().rss - before < 50e6
        assert len(client.room._calls) <= 4
        assert await active(client) == 1
        assert np.percentile(np.diff(times), 95) < 0.1


async def test_h3_a_message_without_an_end_is_bounded(open_room, browser):
    """Fragments that no last one follows are kept by nobody for long."""
    async with open_room() as client:
        caller = browser()
        await caller.call(client)
        await caller.next("state")
        sctp, chunk = caller.pc.sctp, DataChunk(flags=SCTP_DATA_FIRST_FRAG)
        # More than the window holds, though some of it is lost; the room may hang up meanwhile.
        with suppress(ConnectionError):
            for _ in range(6000):
                chunk.tsn, chunk.stream_id, chunk.protocol = sctp._local_tsn, 1, 51
                chunk.user_data = b"x" * 1000
                sctp._local_tsn = tsn_plus_one(sctp._local_tsn)
                await sctp._send_chunk(chunk)
                chunk = DataChunk(flags=0)
                await asyncio.sleep(0)
        await until_active(client, 0)


@pytest.mark.flaky(reruns=2)
async def test_i2_twice_the_capacity_is_refused_fast_and_the_others_play_on(
    open_room, browser, sessions
):
    limits = LimitsConfig(sessions=2, calls_per_minute=600, last_words_s=0)
    async with open_room(BotConfig(limits=limits)) as client:
        callers = [browser(), browser()]
        for caller, _ in zip(callers, range(2), strict=True):
            await caller.call(client)
            await caller.next("state")
        for session, caller in zip(sessions, callers, strict=True):
            await speak(session, LONG)
            await caller.next("bot_heard")
        await (late := browser()).offer(client)
        body = {"sdp": late.pc.localDescription.sdp, "type": "offer"}
        refused, spent = [], []

        async def come_again() -> None:
            for _ in range(40):
                began = time.monotonic()
                refused.append((await client.post("/api/offer", json=body)).status_code)
                spent.append(time.monotonic() - began)
                await asyncio.sleep(0.05)

        _, *times = await asyncio.gather(come_again(), *(arrivals(c, 2) for c in callers))
        assert set(refused) == {503}
        assert np.median(spent) < 0.1
        for heard in times:
            assert len(heard) > 60
            assert np.percentile(np.diff(heard), 95) < 0.1


async def test_j1_the_end_of_candidates_is_no_error(open_room, browser):
    """pipecat #5126: Firefox ends its candidates with an empty one (RFC 8840)."""
    async with open_room() as client:
        caller = browser()
        pc_id = await caller.call(client)
        end = {"candidate": "", "sdp_mid": "0", "sdp_mline_index": 0}
        patch = {"pc_id": pc_id, "candidates": [end]}
        assert (await client.patch("/api/offer", json=patch)).status_code == 200
        await caller.next("state")


async def test_j3_what_is_said_before_the_channel_opens_waits_in_order_and_bounded(
    open_room, browser
):
    """pipecat #3962, #5112."""
    async with open_room() as client:
        caller = browser()
        answer = (await caller.offer(client)).json()
        connection = client.room._calls[answer["pc_id"]].connection
        for n in range(200):
            connection.send_app_message({"type": "early", "n": n})
        assert len(connection._outgoing_messages_queue) == 50
        await caller.accept(answer)
        assert [(await caller.next("early"))["n"] for _ in range(50)] == list(range(50))


async def test_a_caller_who_only_offers_does_not_keep_others_out(open_room, browser):
    """One junk offer is no call: the only place is free for whoever connects."""
    config = BotConfig(limits=LimitsConfig(sessions=1), room=RoomConfig(connect_s=30))
    async with open_room(config) as client:
        assert (await browser().offer(client)).status_code == 200
        caller = browser()
        await caller.call(client)
        await caller.next("state", state="listening")
