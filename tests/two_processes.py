"""A process that resumes a saved run, and says what became of it; see test_two_at_once.py.

    python -m tests.two_processes DIRECTORY [hold]

It waits until DIRECTORY/go exists, so that two of them begin at the same moment. ``send_mail``
appends a line to DIRECTORY/effects and takes a while. With ``hold`` it never ends: the process is
there to be killed while it owns the run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from harness import RunStoreError, Tool, ToolContext, load, run
from scripted_provider import asks, call, text
from tests.rig import TEXT_PARAMETER, client_of

ANSWERS = (asks(call("m1", "send_mail", {"text": "hello"})), text("sent"))


def mail_tool(directory: Path, seconds: float) -> Tool:
    async def send_mail(args: dict[str, Any], ctx: ToolContext) -> str:
        with (directory / "effects").open("a", encoding="utf-8") as file:
            file.write(f"{ctx.idempotency_key}\n")
        await asyncio.sleep(seconds)
        return "sent"

    return Tool("send_mail", "Send a mail.", TEXT_PARAMETER, send_mail, needs_approval=True)


def main(directory: Path, hold: bool) -> None:
    state = load(directory, "paused")
    tools = [mail_tool(directory, 600.0 if hold else 0.3)]
    (directory / f"ready-{time.monotonic_ns()}").touch()
    while not (directory / "go").exists():
        time.sleep(0.001)
    try:
        asyncio.run(run(state, tools, client_of(*ANSWERS), store=directory))
        print(json.dumps({"status": state.status, "turns": state.turns}))
    except RunStoreError as problem:
        print(json.dumps({"refused": f"{type(problem).__name__}: {problem}"}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), hold="hold" in sys.argv)
