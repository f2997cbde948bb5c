"""The room's path to a caller: renewed when the network changes, and through a real TURN server."""

import asyncio
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest
from aioice.stun import TransactionFailed
from aioice.turn import create_turn_endpoint
from aiortc import RTCIceServer
from aiortc.rtcconfiguration import RTCIceTransportPolicy

from bots.room_ice import IceServers
from duologue.config import BotConfig, RoomConfig
from duologue.errors import ConfigError
from tests import room_callers
from tests.coturn import coturn_place
from tests.room_callers import active, speak

browser, open_room, sessions = (
    room_callers.browser,
    room_callers.open_room,
    room_callers.sessions,
)
SECRET = "a shared secret"
COUNT = " ".join(f"word{n}" for n in range(1, 21)) + "."


async def test_a_new_path_goes_on_with_the_same_conversation(open_room, browser, sessions):
    async with open_room() as client:
        caller = browser()
        pc_id = await caller.call(client)
        await caller.next("state")
        await speak(sessions[0], COUNT)
        await caller.next("bot_heard")
        for _ in range(2):
            old = await caller.renew(client)
            assert (await caller.next("state", turn=0))["state"] in ("held", "speaking")
            await caller.next("bot_heard")
            await old.close()
        assert caller.pc_id == pc_id
        assert (await caller.next("bot_end"))["reason"] == "done"
        assert len(sessions) == 1
        assert await active(client) == 1
        frame = await caller.pc.getReceivers()[0].track.recv()
        assert frame.sample_rate == 48_000


async def test_the_bot_waits_while_the_path_is_broken(open_room, browser, sessions):
    async with open_room() as client:
        caller = browser()
        pc_id = await caller.call(client)
        call = client.room._calls[pc_id]
        await caller.next("state")
        caller.channel.send("ping: 1")
        await speak(sessions[0], COUNT * 3)
        # Three seconds without a ping are a broken path.
        async with asyncio.timeout(20):
            while call._words.state != "held":
                call._words._news.clear()
                await call._words._news.wait()
        heard = call._words._heard
        while not caller.messages.empty():
            caller.messages.get_nowait()
        await caller.renew(client)
        await caller.next("state", state="speaking", turn=1)
        assert (await caller.next("bot_heard"))["chars"] >= heard
        assert len(sessions) == 1


async def test_a_new_path_for_a_call_that_is_over_begins_another(open_room, browser, sessions):
    async with open_room() as client:
        caller = browser()
        assert await caller.call(client, pc_id="over", restart_pc=True) != "over"
        await caller.next("state", state="listening")
        assert len(sessions) == 1


@pytest.mark.parametrize("url", ["http://x", "turn:", "stun:a b", "turn://host"])
def test_what_names_no_ice_server_is_refused(url):
    with pytest.raises(ValueError, match="ice_servers"):
        RoomConfig(ice_servers=[url])


def test_a_turn_server_needs_a_credential():
    config = RoomConfig(ice_servers=["stun:s.example", "turn:t.example:3478?transport=tcp"])
    with pytest.raises(ConfigError, match="DUOLOGUE_TURN_SECRET"):
        IceServers(config, environ={})
    fixed = {"DUOLOGUE_TURN_USER": "ada", "DUOLOGUE_TURN_PASSWORD": "pw"}
    stun, turn = IceServers(config, environ=fixed).for_browser()
    assert stun == {"urls": "stun:s.example"}
    assert (turn["username"], turn["credential"]) == ("ada", "pw")


@pytest.fixture(scope="module")
def turn_url(tmp_path_factory):
    """coturn, which knows the secret and nobody by name."""
    binary, address, port = coturn_place()
    folder: Path = tmp_path_factory.mktemp("coturn")
    options = f"""-n --listening-ip={address} --relay-ip={address} --listening-port={port}
        --no-cli --no-tls --no-dtls --fingerprint --realm=test --use-auth-secret
        --pidfile={folder}/pid --userdb={folder}/db --log-file=stdout --simple-log""".split()
    command = [binary, *options, f"--static-auth-secret={SECRET}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    with socket.socket() as probe:
        while probe.connect_ex((address, port)) and time.monotonic() < deadline:
            time.sleep(0.02)
    yield f"turn:{address}:{port}?transport=udp"
    server.terminate()
    server.wait(10)


async def allocate(servers: IceServers) -> None:
    (server,) = servers.for_aiortc()
    host, port = re.findall(r"turn:(.+):(\d+)", str(server.urls))[0]
    transport, _ = await create_turn_endpoint(
        asyncio.DatagramProtocol,
        server_addr=(host, int(port)),
        username=server.username or "",
        password=server.credential or "",
        ssl=False,
        transport="udp",
    )
    transport.close()


async def test_a_real_turn_server_takes_our_credentials_until_they_end(turn_url):
    config, environ = RoomConfig(ice_servers=[turn_url]), {"DUOLOGUE_TURN_SECRET": SECRET}
    await allocate(IceServers(config, environ=environ))
    for wrong in (
        IceServers(config, environ={"DUOLOGUE_TURN_SECRET": "another"}),
        IceServers(config, environ=environ, now=lambda: 1e9),
    ):
        with pytest.raises(TransactionFailed, match="401"):
            await allocate(wrong)


async def test_a_call_through_the_relay_alone(open_room, browser, turn_url, monkeypatch):
    monkeypatch.setenv("DUOLOGUE_TURN_SECRET", SECRET)
    async with open_room(BotConfig(room=RoomConfig(ice_servers=[turn_url]))) as client:
        # The caller knows the servers from the room, as the page does.
        (server,) = (await client.get("/api/status")).json()["ice_servers"]
        caller = browser(
            iceServers=[RTCIceServer(**server)], iceTransportPolicy=RTCIceTransportPolicy.RELAY
        )
        await caller.call(client)
        await caller.next("state", state="listening")
        kinds = re.findall(r"a=candidate:.* typ (\w+)", caller.pc.localDescription.sdp)
        assert set(kinds) == {"relay"}
