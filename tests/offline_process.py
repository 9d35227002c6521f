"""The main things of the workbook, in a process that may open no connection at all.

    python -m tests.offline_process

Prints what it found as JSON. The tests' own guard, which lets loopback through, is there too;
here even loopback is refused, until the part that serves on it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

from tests import no_network

connections: list[str] = []
loopback_is_open = False


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto") and not loopback_is_open:
        connections.append(f"{event} {args[-1]!r}")
        raise no_network.NetworkRefusedError(connections[-1])


def main() -> dict[str, Any]:
    global loopback_is_open
    from catalogue import catalogue
    from chat_client import ChatClient
    from harness import approve, new_run, run
    from scripted_provider import SCRIPTS, Provider, serving
    from workbook import SYSTEM, TASK, client_for

    async def ended(script: str, **options: Any) -> str:
        state = new_run(SYSTEM, TASK)
        client, tools = client_for(script), catalogue(step_s=0)
        await run(state, tools, client, **options)
        if state.interruption and state.interruption["type"] == "approval":
            approve(state, state.interruption["call_id"])
            await run(state, tools, client, **options)
        return state.status

    async def served() -> str:
        with serving(Provider()) as url:
            async with ChatClient(url, "plan") as client:
                state = await run(new_run(SYSTEM, TASK), catalogue(), client)
        return state.output

    found: dict[str, Any] = {
        "statuses": {name: asyncio.run(ended(name)) for name in SCRIPTS},
        "streamed": asyncio.run(ended("plan", on_delta=lambda piece: None)),
    }
    found["connections"] = list(connections)
    loopback_is_open = True
    found["served"] = asyncio.run(served())
    found["beyond"] = _beyond()
    return found


def _beyond() -> str:
    """What comes of a connection beyond this machine: proof that the guard was there."""
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1).close()
    except RuntimeError as refusal:  # the guard is imported by two names, so it has two classes
        return type(refusal).__name__
    return "open"


if __name__ == "__main__":
    no_network.install()
    if sys.platform != "win32":  # there an event loop connects to itself
        sys.addaudithook(_refuse)
    print(json.dumps(main()))
