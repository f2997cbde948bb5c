"""Downloads one file of known size and hash; a cut transfer goes on where it stopped."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from duologue.errors import ModelError
from duologue.models.progress import Progress
from duologue.models.verify import sha256_of

PAUSES_S = (0, 1, 2, 4, 8)  # before each attempt
CHUNK_BYTES = 1 << 14  # what a cut may lose
TIMEOUT_S = (10, 60)  # to connect, between two reads

CUTS = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
)

OFFLINE_HINT = (
    "Check the network and try again, or copy the files from another machine "
    "and set DUOLOGUE_MODELS to their folder."
)


def without_secrets(url: str) -> str:
    """The URL as it may be shown: no user, password or query."""
    return re.sub(r"(?<=//)[^/@]*@", "", url.partition("?")[0])


@contextmanager
def network_errors(url: str) -> Iterator[None]:
    """Turn what `requests` raises into a ModelError that names the address.

    Raises:
        ModelError: there was no answer, or one that says no.
    """
    try:
        yield
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "with an error"
        raise ModelError(
            f"{without_secrets(url)} answered {status}, expected 200. {OFFLINE_HINT}"
        ) from error
    except requests.RequestException as error:
        raise ModelError(
            f"no usable answer from {without_secrets(url)} ({type(error).__name__}). "
            + OFFLINE_HINT
        ) from error


def new_session() -> requests.Session:
    """A session that asks a busy server again and trusts the certificates that pip and uv do."""
    session = requests.Session()
    busy = Retry(
        connect=0,
        read=0,
        status=3,
        backoff_factor=1,
        status_forcelist=(429, 500, 502, 503, 504),
        raise_on_status=False,
    )
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=busy))
    if bundle := os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"):
        session.verify = bundle
    return session


@dataclass(slots=True)
class Downloader:
    """Fetches files over HTTP and counts their bytes on one progress."""

    session: requests.Session
    progress: Progress
    sleep: Callable[[float], None] = time.sleep
    _counted: int = 0

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Take the counted bytes back when the block fails, because another source comes next."""
        before = self._counted
        try:
            yield
        except ModelError:
            self._count(before - self._counted)
            raise

    def fetch(
        self,
        url: str,
        target: Path,
        *,
        size: int,
        sha256: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Download to `target`, or keep it when an earlier call has put it there.

        Args:
            url: where the file is.
            target: where it goes; beside it lies `target`.part while it is not whole.
            size: expected bytes.
            sha256: expected hash, in hex.
            headers: sent along, such as an authorisation.

        Raises:
            ModelError: no network, a refusal, or bytes with another hash.
        """
        if target.exists():
            self._count(size)
            return
        partial = target.with_name(target.name + ".part")
        resumed = partial.exists()
        self._transfer(url, partial, size, headers)
        found = sha256_of(partial)
        if found != sha256 and resumed:
            # The part kept from an earlier run may be what is damaged.
            self._discard(partial)
            self._transfer(url, partial, size, headers)
            found = sha256_of(partial)
        if found != sha256:
            self._discard(partial)
            raise ModelError(
                f"{target.name} from {without_secrets(url)}: SHA-256 is {found}, expected "
                f"{sha256}. It was thrown away. Try again; if this repeats, the source has "
                "changed and must not be used."
            )
        os.replace(partial, target)

    def _transfer(self, url: str, partial: Path, size: int, headers: dict[str, str] | None) -> None:
        """Bring `partial` to `size` bytes, in several goes if need be."""
        self._count(_size(partial))
        cut: requests.RequestException | None = None
        with network_errors(url):
            for pause_s in PAUSES_S:
                if pause_s:
                    self.sleep(pause_s)
                try:
                    self._append(url, partial, size, headers)
                except CUTS as error:
                    cut = error
                if _size(partial) == size:
                    return
            if cut:
                raise cut
        raise ModelError(
            f"{without_secrets(url)} gave {_size(partial)} bytes, expected {size}. {OFFLINE_HINT}"
        )

    def _append(self, url: str, partial: Path, size: int, headers: dict[str, str] | None) -> None:
        """One request for the bytes that are still missing."""
        if _size(partial) > size:
            self._discard(partial)
        have = _size(partial)
        if have == size:
            return
        # Compressed transfer would make ranges and lengths count something else.
        wanted = {"Accept-Encoding": "identity", **(headers or {})}
        if have:
            wanted["Range"] = f"bytes={have}-"
        with self.session.get(url, headers=wanted, stream=True, timeout=TIMEOUT_S) as response:
            goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if have and not (response.status_code == 206 and goes_on):
                self._discard(partial)
            if response.status_code == 416:
                return
            response.raise_for_status()
            with partial.open("ab") as file:
                for chunk in response.iter_content(CHUNK_BYTES):
                    file.write(chunk)
                    self._count(len(chunk))
                    if file.tell() > size:
                        return

    def _discard(self, partial: Path) -> None:
        self._count(-_size(partial))
        partial.unlink(missing_ok=True)

    def _count(self, n_bytes: int) -> None:
        self._counted += n_bytes
        self.progress.advance(n_bytes)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
