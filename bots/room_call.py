"""One caller of the room: the path, the conversation over it, and how both end."""

import asyncio
import gc
import time
from collections import deque
from contextlib import suppress
from typing import Any

from loguru import logger
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from bots.assembly import IN_RATE_HZ, OUT_RATE_HZ, Session, build_session, load_listening
from bots.last_words import LastWords
from bots.models import Models
from bots.room_connection import RoomConnection
from bots.webrtc import RoomTransport
from duologue.config import BotConfig
from duologue.errors import CapacityError
from duologue.limits import Places
from processors.frames import HoldFrame, ResumeFrame

CHECK_S = 1.0
# Fewer than pipecat queues for a channel that is not open yet.
MISSED_EVENTS = 40
BOT_AT_WORK = ("speaking", "thinking", "tool")


class RoomCall:
    """A caller, from the answered offer to the end.

    A caller takes a place once the path stands: an offer alone holds none, and costs no pipeline.

    Args:
        connection: The caller's, answered.
        models: What all share.
        config: The set-up.
        places: The room's.

    Attributes:
        waiting: Whether the path has not stood yet.
    """

    def __init__(
        self, connection: RoomConnection, models: Models, config: BotConfig, places: Places
    ):
        self.connection = connection
        self.waiting = True
        self._models = models
        self._config = config
        self._places = places
        self._words = LastWords()
        self._session: Session | None = None
        self._held = False
        self._path_lost_s: float | None = None
        # What the page misses while it has no path; beyond the bound the oldest is dropped.
        self._missed: deque[dict[str, Any]] = deque(maxlen=MISSED_EVENTS)

    async def run(self) -> None:
        """Wait for the path, then converse until somebody ends it."""
        try:
            if await self._connected():
                with self._places.take():
                    await self._converse()
        except CapacityError as error:
            await self._say_goodbye(str(error))
        except Exception:
            logger.exception(f"session {self.connection.pc_id} failed")
            await self._say_goodbye("The call could not be held. The server's log says why.")
        finally:
            await self.connection.disconnect()
            # A session is full of cycles that hold models' memory; do not wait for it to add up.
            gc.collect()

    async def answer(self, sdp: str) -> dict[str, str]:
        """Take an offer, the first or one for a new path; returns the answer for the page."""
        await self._lose_path()
        return await self.connection.answer(sdp)

    async def end(self, reason: str) -> None:
        """Let the sentence that is being said end, say why, and hang up."""
        await self._words.said(self._config.limits.last_words_s)
        await self._say_goodbye(reason)
        self.connection.gone.set()

    async def _connected(self) -> bool:
        """Whether the path stood in time. A peer that never connects fires no event at all."""
        connection = self.connection
        waits = [asyncio.ensure_future(e.wait()) for e in (connection.stands, connection.gone)]
        try:
            await asyncio.wait(
                waits,
                timeout=self._config.room.connect_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        self.waiting = False
        return connection.stands.is_set() and not connection.gone.is_set()

    async def _converse(self) -> None:
        params = TransportParams(
            audio_in_enabled=True,
            audio_in_sample_rate=IN_RATE_HZ,
            audio_out_enabled=True,
            audio_out_sample_rate=OUT_RATE_HZ,
            audio_out_10ms_chunks=2,
        )
        transport = RoomTransport(self.connection, params)
        session = build_session(
            self._models,
            self._config,
            await load_listening(self._config),
            inputs=[transport.input()],
            outputs=[transport.output()],
            send=self._send,
        )

        async def on_connected(*_: Any) -> None:
            await self._find_path(session)

        async def on_idle(*_: Any) -> None:
            await self._say_goodbye("Nobody has spoken for a while.")

        transport.add_event_handler("on_client_connected", on_connected)
        session.worker.add_event_handler("on_idle_timeout", on_idle)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(session.worker)
        watch = asyncio.create_task(self._end_in_time(session))
        try:
            await runner.run(auto_end=True)
        finally:
            watch.cancel()

    async def _end_in_time(self, session: Session) -> None:
        """End the session when the caller is gone or the call has lasted its time."""
        limits, connection = self._config.limits, self.connection
        try:
            async with asyncio.timeout(limits.session_s):
                while not self._given_up():
                    if not connection.is_connected():
                        await self._lose_path()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(connection.gone.wait(), CHECK_S)
        except TimeoutError:
            await self.end(f"A call may last {limits.session_s / 60:g} minutes.")
        await session.worker.cancel()

    def _given_up(self) -> bool:
        lost_s = self._path_lost_s
        gave_up = lost_s is not None and time.monotonic() - lost_s > self._config.room.reconnect_s
        return self.connection.gone.is_set() or gave_up or self.connection.flooded()

    async def _lose_path(self) -> None:
        """While the path is broken, keep what the bot has to say."""
        if self._session is None:
            return
        if self._path_lost_s is None:
            logger.info(f"{self.connection.pc_id}: the path is broken")
            self._path_lost_s = time.monotonic()
        if self._words.state in BOT_AT_WORK and not self._held:
            self._held = True
            await self._session.worker.queue_frame(HoldFrame())

    async def _find_path(self, session: Session) -> None:
        self._session, self._path_lost_s = session, None
        for event in [*self._missed, {"type": "state", "turn": 0, "state": self._words.state}]:
            self.connection.send_app_message(event)
        self._missed.clear()
        if self._held:
            self._held = False
            await session.worker.queue_frame(ResumeFrame())

    def _send(self, event: dict[str, Any]) -> None:
        self._words.note(event)
        if self._path_lost_s is not None:
            self._missed.append(public(event))
        else:
            self.connection.send_app_message(public(event))

    async def _say_goodbye(self, reason: str) -> None:
        self.connection.send_app_message({"type": "bye", "turn": 0, "reason": reason})


def public(event: dict[str, Any]) -> dict[str, Any]:
    """What a caller may see of an event: the addresses and folders in errors stay in the log."""
    if event["type"] != "error":
        return event
    return event | {"message": "Something went wrong while answering. Please try again."}
