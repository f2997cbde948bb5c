"""The STUN and TURN servers of a room, with credentials made for one caller at a time.

A TURN server is open to whom it knows. With `DUOLOGUE_TURN_SECRET`, which it must share, each
caller gets a credential of its own that soon ends: the user name is the second of its end, the
password the HMAC-SHA1 of that name (coturn's `use-auth-secret`, draft-uberti-behave-turn-rest-00).
A server with fixed users takes `DUOLOGUE_TURN_USER` and `DUOLOGUE_TURN_PASSWORD`.
"""

import base64
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipecat.transports.smallwebrtc.connection import IceServer

from duologue.config import RoomConfig
from duologue.errors import ConfigError

SECRET, USER, PASSWORD = "DUOLOGUE_TURN_SECRET", "DUOLOGUE_TURN_USER", "DUOLOGUE_TURN_PASSWORD"


class IceServers:
    """What a peer connection is given, on either side.

    Args:
        config: Names the servers.
        environ: Holds the secrets.
        now: Seconds since 1970.

    Raises:
        ConfigError: a TURN server is named, and nothing that opens it is set.
    """

    def __init__(
        self,
        config: RoomConfig,
        *,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.time,
    ):
        self._config = config
        self._now = now
        self._secret = environ.get(SECRET, "")
        self._fixed = environ.get(USER, ""), environ.get(PASSWORD, "")
        turn = [url for url in config.ice_servers if url.startswith("turn")]
        if turn and not self._secret and not all(self._fixed):
            raise ConfigError(
                f"room.ice_servers: {turn[0]} needs a credential; set {SECRET} to the secret that "
                f"the server shares (coturn: static-auth-secret), or {USER} and {PASSWORD}"
            )

    def for_browser(self) -> list[dict[str, Any]]:
        """As RTCPeerConnection takes them in JavaScript, with a fresh credential."""
        return [{"urls": url} | self._credential(url) for url in self._config.ice_servers]

    def for_aiortc(self) -> list[IceServer]:
        """As aiortc takes them; of each kind it uses the first."""
        return [IceServer(**server) for server in self.for_browser()]

    def _credential(self, url: str) -> dict[str, str]:
        if not url.startswith("turn"):
            return {}
        if not self._secret:
            return {"username": self._fixed[0], "credential": self._fixed[1]}
        name = str(int(self._now()) + self._config.turn_ttl_s)
        digest = hmac.new(self._secret.encode(), name.encode(), hashlib.sha1).digest()
        return {"username": name, "credential": base64.b64encode(digest).decode()}
