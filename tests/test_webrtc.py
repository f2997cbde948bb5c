"""bots/webrtc.py: packets of the caller's voice arrive in order and at once, whatever gets lost."""

import asyncio
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiortc import MediaStreamTrack, RTCPeerConnection
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket
from av import AudioFrame

from bots.webrtc import PATIENCE, VoiceBuffer, hear_sooner

PACKET = 960


def received(numbers: list[int]) -> list[list[int]]:
    """What a buffer hands on for each arriving packet."""
    early: list[int] = []
    buffer = VoiceBuffer(lambda packet, frame: early.append(packet.sequence_number))
    handed = []
    for number in numbers:
        packet = RtpPacket(sequence_number=number, timestamp=number * PACKET)
        packet._data = b"%d" % number  # type: ignore[attr-defined]
        _, frame = buffer.add(packet)
        handed.append([*early, *([int(frame.data)] if isinstance(frame, JitterFrame) else [])])
        early.clear()
    return handed


@pytest.mark.parametrize(
    ("numbers", "handed"),
    [
        pytest.param([5, 6, 7], [[5], [6], [7]], id="in order, each at once"),
        pytest.param([5, 7, 8, 6, 9], [[5], [], [], [6, 7, 8], [9]], id="late: waited for"),
        pytest.param([5, 7, 8, 9, 10, 11], [[5], [], [], [], [], [7, 8, 9, 10, 11]], id="lost"),
        pytest.param([65535, 0, 2, 1], [[65535], [0], [], [1, 2]], id="numbers wrap"),
        pytest.param([5, 6, 5, 6, 7], [[5], [6], [], [], [7]], id="twice"),
        pytest.param([30000, 30001, 7, 8], [[30000], [30001], [7], [8]], id="a new stream"),
    ],
)
def test_order(numbers: list[int], handed: list[list[int]]) -> None:
    assert received(numbers) == handed


def test_losses_leave_no_delay_behind() -> None:
    """aiortc issue 543: one lost packet delays a call by a bufferful to its end."""
    rng = np.random.default_rng(0)
    numbers = [n % 65536 for n in range(65000, 69000) if rng.random() > 0.05]

    handed = received(numbers)

    assert [n for batch in handed for n in batch][: len(numbers) - PATIENCE] == (
        numbers[: len(numbers) - PATIENCE]
    )
    behind = np.cumsum([1 - len(batch) for batch in handed])
    assert behind.max() <= PATIENCE
    assert np.median(behind) == 0


class Tone(MediaStreamTrack):
    """So many packets of a tone, as fast as they are taken."""

    kind = "audio"

    def __init__(self, packets: int):
        super().__init__()
        self._packets = iter(range(packets))

    async def recv(self) -> AudioFrame:
        """The next 20 ms."""
        await asyncio.sleep(0)
        if (number := next(self._packets, None)) is None:
            await asyncio.Event().wait()
        time = np.arange(number * PACKET, (number + 1) * PACKET) / 48_000  # type: ignore[operator]
        samples = (8000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16)
        frame = AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = 48_000, number * PACKET  # type: ignore[operator]
        frame.time_base = Fraction(1, 48_000)
        return frame


async def test_a_receiver_hands_on_all_that_arrives() -> None:
    """On aiortc's own receiver, of which the buffer uses private parts."""
    caller, room = RTCPeerConnection(), RTCPeerConnection()
    caller.addTrack(Tone(30))
    await caller.setLocalDescription(await caller.createOffer())
    await room.setRemoteDescription(caller.localDescription)
    hear_sooner(SimpleNamespace(pc=room))  # type: ignore[arg-type]
    (receiver,) = room.getReceivers()
    handle, arrived = receiver._handle_rtp_packet, 0

    async def lose_every_tenth(packet: RtpPacket, arrival_time_ms: int) -> Any:
        nonlocal arrived
        arrived += 1
        if arrived % 10 != 3:
            await handle(packet, arrival_time_ms)

    receiver._handle_rtp_packet = lose_every_tenth  # type: ignore[method-assign]
    try:
        await room.setLocalDescription(await room.createAnswer())
        await caller.setRemoteDescription(room.localDescription)
        heard = 0
        async with asyncio.timeout(20):
            while heard < 27:
                frame = await receiver.track.recv()
                assert isinstance(frame, AudioFrame) and frame.samples == PACKET
                heard += 1
    finally:
        await asyncio.gather(caller.close(), room.close())
    assert arrived == 30
