"""What the measurements share: an endpoint, the bare loop as the baseline, and how they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from harness import Tool, ToolContext

SYSTEM = "You answer questions about a directory of log files."
TASK = "Which file mentions a timeout?"
LISTING = '["access.log","errors.log","notes.txt"]'

_SERVE = """
import sys
from scripted_provider import Provider, serving
with serving(Provider(count=False)) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


async def list_files(args: dict[str, Any], ctx: ToolContext) -> str:
    """A tool that costs nothing, so that only the loop is measured."""
    return LISTING


TOOLS = [
    Tool("list_files", "List the files.", {"type": "object", "properties": {}}, list_files, True)
]
SPECS = [tool.spec for tool in TOOLS]


@contextmanager
def endpoint() -> Iterator[str]:
    """The scripted provider on loopback in a process of its own, not counting tokens; its URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


async def bare_loop(http: httpx.AsyncClient, url: str, turns: int) -> list[dict[str, Any]]:
    """The baseline: the least that a loop over httpx can do for so many turns."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK},
    ]
    for _ in range(turns):
        body = {"model": "runaway", "messages": messages, "tools": SPECS}
        response = await http.post(f"{url}/chat/completions", json=body)
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        for call in message["tool_calls"]:
            json.loads(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": LISTING})
    return messages


def report(name: str, measured: float, target: float | None, unit: str = "x") -> bool:
    """Print a measurement beside its target; False when it is missed."""
    met = target is None or measured <= target
    beside = "" if target is None else f"  target <= {target:g}{unit}  {'ok' if met else 'MISSED'}"
    print(f"{name:<58} {measured:8.2f}{unit}{beside}", flush=True)
    return met
