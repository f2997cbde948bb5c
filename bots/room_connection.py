"""One caller's WebRTC connection: a path that can be renewed, and messages within limits."""

import asyncio
import json
from typing import Any

from aiortc import RTCDataChannel
from aiortc.sdp import candidate_from_sdp
from loguru import logger
from pipecat.transports.smallwebrtc.connection import IceServer, SmallWebRTCConnection

from bots.webrtc import hear_sooner
from duologue.config import LimitsConfig
from duologue.limits import Messages

MAX_REFUSED = 1000
"""A caller whose messages are refused that often is hung up on."""


class RoomConnection(SmallWebRTCConnection):
    """pipecat's connection, whose id stays the same when the path is renewed.

    aiortc cannot restart ICE, so a renewed path is a new peer connection under the same session.

    Args:
        ice_servers: For this side.
        limits: Of the caller's messages.

    Attributes:
        stands: Set while a path stands.
        gone: Set when the caller has left, or is to be treated so.
    """

    def __init__(self, ice_servers: list[IceServer], limits: LimitsConfig):
        self._limits = limits
        self._messages = Messages(limits.message_bytes, limits.messages_per_s)
        self._first_id = ""
        self.stands = asyncio.Event()
        self.gone = asyncio.Event()
        super().__init__(ice_servers)
        self._first_id = self.pc_id
        for event in ("closed", "failed"):
            self.add_event_handler(event, self._leave)

    async def answer(self, sdp: str) -> dict[str, str]:
        """Take an offer, the first or one for a new path; returns the answer for the page."""
        if self.get_answer() is None:
            await self.initialize(sdp, "offer")
        else:
            self.stands.clear()
            await self.renegotiate(sdp, "offer", restart_pc=True)
        hear_sooner(self)
        answer = self.get_answer()
        assert answer is not None
        return answer

    async def trickle(self, sdp: str, mid: str | None, line: int | None) -> None:
        """Add a candidate of the other side; an empty one ends them (RFC 8840).

        Raises:
            ValueError: it cannot be read.
        """
        candidate = candidate_from_sdp(sdp) if sdp else None
        if candidate is not None:
            candidate.sdpMid, candidate.sdpMLineIndex = mid or "0", line or 0
        await self.add_ice_candidate(candidate)

    def flooded(self) -> bool:
        """Whether the caller sends what no page would: parts without an end, or refused messages.

        A sender stops at the window that it is told of; aiortc keeps what comes beyond it.
        """
        sctp = self.pc.sctp
        beyond = -vars(sctp)["_advertised_rwnd"] if sctp else 0
        return beyond > self._limits.message_bytes or self._messages.refused > MAX_REFUSED

    def _initialize(self) -> None:
        super()._initialize()
        self._pc_id = self._first_id or self._pc_id

    def _setup_listeners(self) -> None:
        super()._setup_listeners()
        pc = self.pc

        @pc.on("connectionstatechange")
        def on_state() -> None:
            if pc.connectionState == "connected":
                self.stands.set()
            elif pc.connectionState in ("failed", "closed") and not self._connect_invoked:
                self.gone.set()

        pc.on("datachannel", self._guard)

    def _guard(self, channel: RTCDataChannel) -> None:
        """Put the limits in front of pipecat's reader of the channel."""
        (read,) = channel.listeners("message")
        channel.remove_all_listeners("message")

        @channel.on("message")
        async def on_message(message: Any) -> None:
            if self._messages.admits(message) and (is_ping(message) or is_event(message)):
                await read(message)

    async def _leave(self, _: Any) -> None:
        logger.debug(f"{self.pc_id} has left")
        self.gone.set()


def is_ping(message: Any) -> bool:
    """Whether a message only says that the page is alive."""
    return isinstance(message, str) and message.startswith("ping")


def is_event(message: Any) -> bool:
    """Whether a message is one of the protocol: a JSON object with the name of its type."""
    try:
        event = json.loads(message)
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and isinstance(event.get("type"), str)
