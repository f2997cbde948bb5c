"""Where a real coturn of the tests runs."""

import shutil
import socket

import pytest
from aioice.ice import get_host_addresses


def coturn_place() -> tuple[str, str, int]:
    """Its program, and a free address and port of this machine; skips where it is not installed."""
    if not (binary := shutil.which("turnserver")):
        pytest.skip("coturn is not installed (Debian: coturn)")
    (address, *_) = get_host_addresses(use_ipv4=True, use_ipv6=False)
    with socket.socket() as free:
        free.bind((address, 0))
        return binary, address, free.getsockname()[1]
