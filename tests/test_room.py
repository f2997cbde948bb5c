"""The room's HTTP side and its sessions' lives, with aiortc as the browser (reports F1, J1, J3)."""

import asyncio
import gc
import json
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack

from bots import room as room_module
from bots.models import Models
from duologue.config import BotConfig, RoomConfig
from tests.fakes import FakeEngine, FakeVoice

CONFIG = BotConfig(room=RoomConfig(capacity=2))


@pytest.fixture
def open_room(whisper):
    @asynccontextmanager
    async def opened(config: BotConfig = CONFIG):
        app = room_module.create_app(Models(whisper, FakeEngine(), FakeVoice()), config)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1"
            ) as client,
        ):
            yield client

    return opened


@pytest.fixture
async def browser():
    """Makes callers, and hangs up for those that a test has left on the line."""
    callers: list[Browser] = []

    def make() -> Browser:
        callers.append(Browser())
        return callers[-1]

    yield make
    for caller in callers:
        await caller.pc.close()


class Browser:
    """A caller: microphone of silence, the data channel, and what arrived on it."""

    def __init__(self):
        self.pc = RTCPeerConnection()
        self.pc.addTrack(AudioStreamTrack())
        self.channel = self.pc.createDataChannel("chat")
        self.messages: asyncio.Queue[dict] = asyncio.Queue()
        self.channel.on("message", lambda text: self.messages.put_nowait(json.loads(text)))

    async def offer(self, client: httpx.AsyncClient, **extra) -> httpx.Response:
        await self.pc.setLocalDescription(await self.pc.createOffer())
        description = self.pc.localDescription
        body = {"sdp": description.sdp, "type": description.type, **extra}
        return await client.post("/api/offer", json=body)

    async def call(self, client: httpx.AsyncClient) -> str:
        answer = (await self.offer(client)).raise_for_status().json()
        await self.pc.setRemoteDescription(
            RTCSessionDescription(sdp=answer["sdp"], type=answer["type"])
        )
        return answer["pc_id"]

    async def next(self, kind: str) -> dict:
        async with asyncio.timeout(20):
            while (message := await self.messages.get())["type"] != kind:
                pass
            return message


async def active(client: httpx.AsyncClient) -> int:
    return (await client.get("/api/status")).json()["active"]


async def until_active(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(20):
        while await active(client) != count:  # noqa: ASYNC110  (the room has no event to wait for)
            await asyncio.sleep(0.05)


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


async def test_end_of_candidates_and_unknown_connections(open_room, browser):
    async with open_room() as client:
        caller = browser()
        pc_id = await caller.call(client)
        end = {"candidate": "", "sdp_mid": "0", "sdp_mline_index": 0}
        patch = {"pc_id": pc_id, "candidates": [end]}
        assert (await client.patch("/api/offer", json=patch)).status_code == 200
        assert (await client.patch("/api/offer", json={**patch, "pc_id": "x"})).status_code == 404
        bad = {"pc_id": pc_id, "candidates": [{"candidate": "candidate:rubbish"}]}
        assert (await client.patch("/api/offer", json=bad)).status_code == 400
        await caller.pc.close()


async def test_a_full_room_says_so_and_has_room_again_after_a_hang_up(open_room, browser):
    async with open_room() as client:
        first, second, third = browser(), browser(), browser()
        await first.call(client)
        await second.call(client)
        refused = await third.offer(client)
        assert refused.status_code == 503
        assert "full" in refused.json()["detail"]
        for caller in (first, second):
            await caller.next("state")
        await first.pc.close()
        await until_active(client, 1)
        assert (await browser().offer(client)).status_code == 200
        for caller in (second, third):
            await caller.pc.close()


async def test_a_name_that_is_not_ours_is_refused(open_room):
    async with open_room() as client:
        page = await client.get("/", headers={"host": "evil.example"})
        assert page.status_code == 400


async def test_two_offers_at_once_do_not_share_the_last_place(open_room, browser):
    async with open_room() as client:
        answers = await asyncio.gather(*(browser().offer(client) for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503]


def test_errors_tell_the_caller_nothing_of_the_machine():
    event = {"type": "error", "turn": 1, "message": "/secret: no such file", "fatal": False}
    assert "secret" not in str(room_module.public(event))
    assert room_module.public({"type": "bye"}) == {"type": "bye"}


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


async def test_a_peer_that_never_connects_gives_its_place_back(open_room, monkeypatch, browser):
    monkeypatch.setattr(room_module, "CONNECT_TIMEOUT_S", 0.5)
    async with open_room() as client:
        caller = browser()
        assert (await caller.offer(client)).status_code == 200
        assert await active(client) == 1
        await until_active(client, 0)
        await caller.pc.close()


async def test_a_page_that_vanishes_gives_its_place_back(open_room, browser):
    async with open_room() as client:
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
