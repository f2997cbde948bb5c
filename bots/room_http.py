"""What the room takes over HTTP, and how it refuses the rest."""

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duologue.config import Section

MAX_SDP_CHARS = 64_000
NEEDED_IN_SDP = ("m=audio", "a=fingerprint:", "a=ice-ufrag:", "opus/48000")


class Offer(Section):
    """A browser's offer.

    Attributes:
        pc_id: The connection for which it offers a new path.
        restart_pc: As in pipecat's clients; a new path is a new connection in any case.
    """

    sdp: str = Field(max_length=MAX_SDP_CHARS)
    type: str
    pc_id: str | None = None
    restart_pc: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether it can be answered at all."""
        return self.type == "offer" and all(part in self.sdp for part in NEEDED_IN_SDP)


class Candidate(Section):
    """A trickled ICE candidate; an empty one ends the candidates (RFC 8840)."""

    candidate: str = Field(max_length=2000)
    sdp_mid: str | None = None
    sdp_mline_index: int | None = None


class Candidates(Section):
    """Trickled ICE candidates of one connection."""

    pc_id: str
    candidates: list[Candidate] = Field(max_length=100)


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong with a body without sending it back."""
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return JSONResponse({"detail": "; ".join(problems)[:1000]}, 422)


class BodyLimit:
    """ASGI middleware: refuses bodies that are too long while they arrive.

    Args:
        app: What takes the others.
        max_bytes: The longest body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int):
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what the application reads."""
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                raise HTTPException(413, f"At most {self._max_bytes} bytes are taken.")
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)
