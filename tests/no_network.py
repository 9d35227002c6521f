"""Refuse the network beyond this machine: what runs offline must never try.

The guard is an audit hook, so it sees every socket of the process, asyncio's included. Once
installed it stays until the process ends. It is installed in pytest's own process
(conftest.py) and, through sitecustomize, in every Python process that pytest starts: kernels,
servers, a run continued in a second process.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

STARTUP_DIRECTORY = Path(__file__).parent / "startup"

# What the guard has refused so far in this process, so that a test fails even if the code
# under test caught the exception.
refused: list[str] = []


class NetworkRefusedError(RuntimeError):
    """Not an OSError: code that expects network trouble must not take this for some."""


def install() -> None:
    """Guard this process, from now to its end."""
    sys.addaudithook(_refuse)


def install_in_children() -> None:
    """Guard every Python process that this one starts."""
    paths = [str(STARTUP_DIRECTORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def is_local(host: object) -> bool:
    """Whether `host`, a name or an address as sockets take them, is this machine."""
    if isinstance(host, bytes | bytearray):
        host = host.decode("ascii", "replace")
    if host is None or host in ("", "localhost", "::1", "0.0.0.0", "::"):
        return True
    if not isinstance(host, str):
        return False
    try:
        return socket.inet_pton(socket.AF_INET, host)[0] == 127
    except (OSError, ValueError):
        return False


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if not event.startswith("socket."):
        return
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        sock, address = args
        family = getattr(sock, "family", None)
        # A path, or an already connected socket, which was judged when it connected.
        if family not in (socket.AF_INET, socket.AF_INET6) or address is None:
            return
        host: object = address[0] if isinstance(address, tuple) else address
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = args[0]
        # A program may ask what its own machine is called; nothing is sent by that.
        if host == socket.gethostname():
            return
    else:
        return
    if not is_local(host):
        refused.append(f"{event} {host!r}")
        raise NetworkRefusedError(f"the network is refused here: {event} to {host!r}")
