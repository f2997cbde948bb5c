"""Who may call: the provider's signature, and a token for each call.

A provider signs its request's URL, and a form's fields, with a secret that both sides know
(X-Twilio-Signature). The answer to a new call names a stream URL that works once, for that call.
"""

import base64
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

SIGNATURE = "x-twilio-signature"
SETTINGS = "x-twilio-webhooks-signature-settings"
TOKEN_S = 60.0
MAX_TOKENS = 1000
_HASHES = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}
_DEFAULT_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}


def sign(
    secret: str, url: str, form: Iterable[tuple[str, str]] = (), hash_name: str = "sha1"
) -> str:
    """The signature of a request.

    Args:
        secret: Shared with the provider.
        url: As the provider knows it, with its query.
        form: The body's fields.
        hash_name: "sha1" or "sha256".
    """
    text = url + "".join(name + value for name, value in sorted(set(form)))
    digest = hmac.new(secret.encode(), text.encode(), hash_name).digest()
    return base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the provider signs with.

    Attributes:
        auth_token: Of the account.
        shared_key: Of the webhook rule that asks for HMAC_SHA256; the account's where it has none.
    """

    auth_token: str
    shared_key: str | None = None

    def verify(
        self, headers: Mapping[str, str], url: str, form: Iterable[tuple[str, str]] = ()
    ) -> bool:
        """Whether `headers` sign this request."""
        given, fields = headers.get(SIGNATURE), tuple(form)
        secret, algorithm = self.auth_token, "HMAC_SHA1"
        if (settings := headers.get(SETTINGS)) is not None:
            found = re.search(r"(?:^|,)\s*algorithm=(\w+)", settings)
            secret, algorithm = self.shared_key or secret, found[1] if found else ""
        if not given or algorithm not in _HASHES:
            return False
        spelled = spellings(url)
        expected = [sign(secret, spelling, fields, _HASHES[algorithm]) for spelling in spelled]
        # All are compared, each in constant time.
        return any([hmac.compare_digest(given.encode(), one.encode()) for one in expected])


def spellings(url: str) -> tuple[str, str]:
    """`url` with and without its scheme's default port: providers sign either."""
    parts = urlsplit(url)
    port = _DEFAULT_PORTS[parts.scheme]
    host = parts.netloc.removesuffix(f":{port}")
    if re.search(r":\d+$", host):
        return url, url
    bare = parts._replace(netloc=host)
    return bare.geturl(), bare._replace(netloc=f"{host}:{port}").geturl()


class Tokens:
    """Single-use tokens, each bound to a call.

    The newest MAX_TOKENS are kept: only a provider's signed request makes one.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._calls: dict[str, tuple[str, float]] = {}

    def issue(self, call_id: str) -> str:
        """A new token for a call, good for TOKEN_S."""
        while len(self._calls) >= MAX_TOKENS:
            del self._calls[next(iter(self._calls))]
        token = secrets.token_urlsafe(24)
        self._calls[token] = (call_id, self._clock() + TOKEN_S)
        return token

    def redeem(self, token: str) -> str | None:
        """The call that the token was made for; None if there is none, or no longer."""
        call_id, until_s = self._calls.pop(token, ("", 0.0))
        return call_id if self._clock() < until_s else None
