"""The room's HTTP side and its sessions' lives, with aiortc as the browser (reports F1, J1, J3)."""

import asyncio
import gc

import psutil
import pytest

from bots.room_call import public
from duologue.config import BotConfig, LimitsConfig, RoomConfig
from tests import room_callers
from tests.room_callers import active, until_active

browser, open_room = room_callers.browser, room_callers.open_room


async def test_the_page_and_the_status(open_room):
    async with open_room() as client:
        page = await client.get("/")
        assert page.status_code == 200
        assert "duologue" in page.text.lower()
        assert (await client.get("/web/app.js")).status_code == 200
        assert (await client.get("/web/../room.py")).status_code == 404
        status = (await client.get("/api/status")).json()
        assert (status["ready"], status["capacity"], status["active"]) == (True, 2, 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"sdp": "nonsense", "type": "offer"}, 400),
        ({"sdp": "", "type": "answer"}, 400),
        ({"sdp": "x" * 100_000, "type": "offer"}, 422),
        ({"type": "offer"}, 422),
        ({"sdp": "x", "type": "offer", "extra": 1}, 422),
        ([1, 2], 422),
        ('{"sdp": NaN, "type": "offer"}', 422),
        ('{"sdp": "\\ud800m=audio", "type": "offer"}', 422),
        (b"\xff\xfe", 422),
        ("x" * 1_000_000, 413),
    ],
    ids=range(10),
)
async def test_bad_offers_are_refused_and_hold_no_place(open_room, body, code):
    async with open_room() as client:
        content = {"content": body} if isinstance(body, str | bytes) else {"json": body}
        answer = await client.post("/api/offer", **content)
        assert answer.status_code in (code, 400 if code == 422 else code)
        assert len(answer.content) < 2000
        assert await active(client) == 0


async def test_candidates_of_unknown_connections_and_unreadable_ones(open_room, browser):
    async with open_room() as client:
        caller = browser()
        pc_id = await caller.call(client)
        unknown = {"pc_id": "x", "candidates": []}
        assert (await client.patch("/api/offer", json=unknown)).status_code == 404
        bad = {"pc_id": pc_id, "candidates": [{"candidate": "candidate:rubbish"}]}
        assert (await client.patch("/api/offer", json=bad)).status_code == 400
        await caller.pc.close()


async def test_a_full_room_says_so_and_has_room_again_after_a_hang_up(open_room, browser):
    async with open_room() as client:
        first, second, third = browser(), browser(), browser()
        for caller in (first, second):
            await caller.call(client)
            await caller.next("state")
        refused = await third.offer(client)
        assert refused.status_code == 503
        assert "full: 2 of 2 places" in refused.json()["detail"]
        assert refused.headers["retry-after"]
        await first.pc.close()
        await until_active(client, 1)
        assert (await browser().offer(client)).status_code == 200
        for caller in (second, third):
            await caller.pc.close()


async def test_a_name_that_is_not_ours_is_refused(open_room):
    async with open_room() as client:
        page = await client.get("/", headers={"host": "evil.example"})
        assert page.status_code == 400


async def test_callers_at_once_do_not_share_the_last_place(open_room, browser):
    async with open_room() as client:
        callers = [browser() for _ in range(4)]
        await asyncio.gather(*(caller.call(client) for caller in callers))
        first = [await asyncio.wait_for(caller.messages.get(), 20) for caller in callers]
        assert sorted(message["type"] for message in first) == ["bye", "bye", "state", "state"]
        reasons = [message["reason"] for message in first if message["type"] == "bye"]
        assert all("The room is full" in reason for reason in reasons)
        assert await active(client) == 2


async def test_several_people_one_after_another(open_room, browser):
    async with open_room(BotConfig(limits=LimitsConfig(sessions=1))) as client:
        for _ in range(3):
            caller = browser()
            await caller.call(client)
            await caller.next("state", state="listening")
            await caller.pc.close()
            await until_active(client, 0)


async def test_junk_offers_hold_no_place_and_give_way(open_room, browser):
    limits = LimitsConfig(sessions=1, connecting=2)
    async with open_room(BotConfig(limits=limits)) as client:
        junk = [browser() for _ in range(4)]
        for caller in junk:
            assert (await caller.offer(client)).status_code == 200
        assert await active(client) == 0
        guest = browser()
        await guest.call(client)
        await guest.next("state", state="listening")
        assert await active(client) == 1
        # Room for two on their way: the other ones have given way.
        assert len(client.room._calls) <= 3


def test_errors_tell_the_caller_nothing_of_the_machine():
    event = {"type": "error", "turn": 1, "message": "/secret: no such file", "fatal": False}
    assert "secret" not in str(public(event))
    assert public({"type": "bye"}) == {"type": "bye"}


async def test_messages_from_before_the_channel_opened_arrive_in_order(open_room, browser):
    async with open_room() as client:
        caller = browser()
        await caller.call(client)
        assert await caller.next("state") == {"type": "state", "turn": 0, "state": "listening"}
        await caller.pc.close()


async def test_nonsense_on_the_channel_does_not_end_the_call(open_room, browser):
    async with open_room() as client:
        caller = browser()
        await caller.call(client)
        await caller.next("state")
        for text in ("not json", "[]", "{}", '{"type": 7}', "x" * 60_000, '{"type": "playback"}'):
            caller.channel.send(text)
        caller.channel.send("ping: 1")
        await asyncio.sleep(0.5)
        assert await active(client) == 1
        await caller.pc.close()


async def test_a_peer_that_never_connects_is_released(open_room, browser):
    async with open_room(BotConfig(room=RoomConfig(connect_s=0.3))) as client:
        caller = browser()
        assert (await caller.offer(client)).status_code == 200
        (call,) = client.room._calls.values()
        (task,) = client.room._tasks
        await asyncio.wait_for(task, 5)
        assert call.connection.pc.connectionState == "closed"
        assert not client.room._calls
    assert BotConfig().room.connect_s < 30


async def test_a_page_that_vanishes_gives_its_place_back(open_room, browser):
    async with open_room(BotConfig(room=RoomConfig(reconnect_s=1))) as client:
        caller = browser()
        await caller.call(client)
        await caller.next("state")
        caller.channel.send("ping: 1")
        await until_active(client, 0)


async def test_closing_the_room_says_goodbye(open_room, browser):
    caller = browser()
    async with open_room() as client:
        await caller.call(client)
        await caller.next("state")
    assert (await caller.next("bye"))["reason"]
    await caller.pc.close()


async def test_ten_calls_leave_no_task_and_no_socket(open_room, browser):
    async with open_room() as client:

        async def one_call():
            caller = browser()
            await caller.call(client)
            await caller.next("state")
            await caller.pc.close()
            await until_active(client, 0)

        process = psutil.Process()
        await one_call()
        gc.collect()
        await asyncio.sleep(0.2)
        before = len(asyncio.all_tasks()), process.num_fds()
        for _ in range(10):
            await one_call()
        gc.collect()
        await asyncio.sleep(0.2)
        assert len(asyncio.all_tasks()) <= before[0]
        assert process.num_fds() <= before[1] + 2
