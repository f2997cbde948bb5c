"""Room and phone tell whoever runs them how they are."""

import httpx
import pytest
from prometheus_client import REGISTRY
from websockets.asyncio.client import connect

from tests import room_callers
from tests.phone_calls import dial, open_line, set_up

browser, open_room = room_callers.browser, room_callers.open_room


def ended(kind: str, outcome: str) -> float:
    labels = {"kind": kind, "outcome": outcome}
    return REGISTRY.get_sample_value("duologue_sessions_ended_total", labels) or 0.0


async def check(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/ready")).json()["ready"] is True
    assert "duologue_sessions" in (await client.get("/metrics")).text


async def test_a_room_tells(open_room, browser):
    before = ended("room", "refused")
    async with open_room() as client:
        await check(client)
        callers = [browser() for _ in range(2)]
        for caller in callers:
            await caller.call(client)
            await caller.next("state")
        assert (await client.get("/ready")).status_code == 503
        assert (await browser().offer(client)).status_code == 503
        assert ended("room", "refused") == before + 1


async def test_a_phone_tells(whisper):
    before = ended("phone", "done"), ended("phone", "refused")
    async with (
        open_line(whisper, config=set_up(greeting="Hello.", sessions=1)) as line,
        httpx.AsyncClient(base_url=line.http) as client,
    ):
        await check(client)
        async with dial(f"{line.ws}/ws") as call:
            await call.heard(0.1)
            assert (await client.get("/ready")).json()["active"] == 1
            async with connect(f"{line.ws}/ws") as second:
                await second.wait_closed()
                assert second.close_code == 1013
    assert (ended("phone", "done"), ended("phone", "refused")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("verbose", [False, True])
def test_the_commands_log_to_one_place(verbose, monkeypatch):
    from bots import cli

    told = []
    monkeypatch.setattr(cli, "log_to", lambda **options: told.append(options))
    cli.quiet(verbose)
    assert told == [{"verbose": verbose}]
