"""What whoever runs a bot asks it: whether it lives, whether it takes calls, and its figures."""

import hmac
import os
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from duologue import metrics
from duologue.errors import CapacityError
from duologue.limits import Places

TOKEN = "DUOLOGUE_METRICS_TOKEN"


def add_ops(app: FastAPI, places_of: Callable[[], Places]) -> None:
    """Add /health, /ready and /metrics for what holds these places.

    /ready answers 503 once a further call would be refused; models are loaded before an
    application is made. With DUOLOGUE_METRICS_TOKEN set, /metrics needs it as a bearer token.
    """

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        places, reason = places_of(), ""
        try:
            places.check()
        except CapacityError as error:
            reason = str(error)
        facts: dict[str, Any] = {
            "ready": not reason,
            "reason": reason,
            "active": places.taken,
            "capacity": places.capacity,
        }
        return JSONResponse(facts, 503 if reason else 200)

    @app.get("/metrics")
    async def figures(request: Request) -> Response:
        token = os.environ.get(TOKEN, "")
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, f"Send the token of {TOKEN} as a bearer token.")
        return Response(metrics.render(), media_type=metrics.CONTENT_TYPE)
