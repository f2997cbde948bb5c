"""Addresses that servers listen on."""

import ipaddress
import socket

from duologue.errors import UsageError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, *, settings: str = "--host and --port") -> socket.socket:
    """A bound socket, before models are loaded for nothing.

    Args:
        host: A name or an address.
        port: 0 for any free one.
        settings: What sets them, for the message.

    Raises:
        UsageError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise UsageError(
            f"{host}:{port} cannot be listened on ({error.strerror}); choose another by {settings}"
        ) from error
    return sock
