"""How a phone's stream begins: the messages in which a provider says which call it brings."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from duologue.errors import InputError

START_S = 10.0
"""A stream says which call it is within this time."""
MESSAGES = 2
"""Twilio and Telnyx greet first."""
WANTED = "expected the start message of a Twilio, Telnyx or Plivo stream"

Provider = Literal["twilio", "telnyx", "plivo"]
Encoding = Literal["PCMU", "PCMA"]
Id = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Start:
    """What a stream says of itself.

    Attributes:
        provider: Who sends it.
        stream_id: What messages to it are addressed to.
        call_id: The provider's name of the call.
        encoding: Of the audio, both ways.
    """

    provider: Provider
    stream_id: str
    call_id: str
    encoding: Encoding = "PCMU"


class _Format(BaseModel):
    encoding: str = "PCMU"


class _Details(BaseModel):
    model_config = ConfigDict(strict=True)

    streamSid: Id | None = None
    callSid: Id | None = None
    streamId: Id | None = None
    callId: Id | None = None
    call_control_id: Id | None = None
    media_format: _Format = _Format()


class _Message(BaseModel):
    """Of every provider; they add fields as they please."""

    model_config = ConfigDict(strict=True)

    event: str
    stream_id: Id | None = None
    start: _Details | None = None

    def read(self) -> Start:
        details = self.start or _Details()
        if details.streamSid and details.callSid:
            return Start("twilio", details.streamSid, details.callSid)
        if details.streamId and details.callId:
            return Start("plivo", details.streamId, details.callId)
        if not self.stream_id or not details.call_control_id:
            raise InputError(f"{WANTED}, found one without the ids of stream and call")
        encoding = details.media_format.encoding
        if encoding not in ("PCMU", "PCMA"):
            raise InputError("expected PCMU or PCMA, found another encoding; set it at Telnyx")
        return Start("telnyx", self.stream_id, details.call_control_id, encoding)


class Lobby:
    """Streams that have not said yet which call they are: they hold no line.

    Args:
        capacity: How many; beyond, the one who has waited longest gives way.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        self._waiting: list[asyncio.Timeout] = []

    async def start_of(self, websocket: WebSocket) -> Start:
        """Read a stream's first messages.

        Raises:
            InputError: none came in START_S, or before others needed the room, or they are of no
                provider that is known.
        """
        try:
            async with asyncio.timeout(START_S) as patience:
                with self._in_line(patience):
                    return await _read(websocket)
        except TimeoutError:
            raise InputError(f"{WANTED}, none came in time") from None

    @contextmanager
    def _in_line(self, patience: asyncio.Timeout) -> Iterator[None]:
        if len(self._waiting) >= self._capacity:
            oldest = self._waiting.pop(0)
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        self._waiting.append(patience)
        try:
            yield
        finally:
            # It may have given way.
            with suppress(ValueError):
                self._waiting.remove(patience)


async def _read(websocket: WebSocket) -> Start:
    for _ in range(MESSAGES):
        received = await websocket.receive()
        if received["type"] == "websocket.disconnect":
            raise InputError(f"{WANTED}, the stream ended before it")
        text = received.get("text")
        if text is None:
            raise InputError(f"{WANTED} as text, found binary data")
        try:
            message = _Message.model_validate_json(text)
        except ValidationError as error:
            raise InputError(f"{WANTED}, found {_what(error)}") from error
        if message.event == "start":
            return message.read()
    raise InputError(f"{WANTED}, found other messages")


def _what(error: ValidationError) -> str:
    """What cannot be read, in words that tell nothing of how it was read."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "text that is no JSON"
    where = ".".join(map(str, first["loc"]))
    return f"a message whose {where} cannot be read" if where else "JSON that is no object"
