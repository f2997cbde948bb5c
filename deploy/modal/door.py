"""The front door: it sends everyone on to a container of their own."""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape, quoteattr

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials

from bots.phone import BUSY, Gate, twiml
from bots.room_http import BodyLimit
from duologue.errors import CapacityError, ConfigError

PASSWORD = "DUOLOGUE_PAGE_PASSWORD"


def make_door(
    room: Callable[[], Awaitable[str]],
    phone: Callable[[str], Awaitable[str]],
    gate: Gate | None,
    *,
    body_bytes: int,
) -> FastAPI:
    """The door's web application.

    Args:
        room: Makes a room ready; returns its address. Raises CapacityError when all are taken.
        phone: The same for a call by its id; the address is the stream's.
        gate: Knows the provider; without it nobody can ring.
        body_bytes: The longest body.

    Raises:
        ConfigError: the page has no password, and anybody could run up the bill.
    """
    password = os.environ.get(PASSWORD, "")
    if not password:
        raise ConfigError(f"{PASSWORD}: missing; put it into the secret `duologue-bot`")
    app = FastAPI(title="duologue", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit, max_bytes=body_bytes)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/")
    async def page(who: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> Response:
        if not hmac.compare_digest(who.password.encode(), password.encode()):
            raise HTTPException(401, "Wrong password.", {"WWW-Authenticate": "Basic"})
        try:
            return RedirectResponse(await room(), 303, headers={"Cache-Control": "no-store"})
        except CapacityError as error:
            raise HTTPException(503, str(error), {"Retry-After": "60"}) from error

    @app.post("/voice")
    async def voice(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace")
        form = parse_qsl(body, keep_blank_values=True)
        if gate is None or gate.secrets is None or not gate.knows(request, form):
            raise HTTPException(403, "The request is not signed by the provider.")
        call_id = dict(form).get("CallSid")
        if not call_id:
            raise HTTPException(400, "Expected a call's form with CallSid.")
        try:
            url = quoteattr(await phone(call_id))
        except CapacityError:
            return twiml(f"<Say>{escape(BUSY)}</Say><Hangup/>")
        return twiml(f"<Connect><Stream url={url}/></Connect>")

    return app
