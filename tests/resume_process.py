"""One run in two processes: the first is killed after its second turn, the second finishes.

    python -m tests.resume_process first|second DIRECTORY

The tool runs of both are appended to ``DIRECTORY/tools``, one a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import scripted_provider
from catalogue import catalogue
from harness import RunState, Tool, load, new_run, run
from scripted_provider import Message
from tests.support import counted
from workbook import SYSTEM, TASK, client_for

RUN_ID = "n2"


class _Notes(list[str]):
    """A list whose entries outlive the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def append(self, note: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{note}\n")


def plan(turn: int, tool_text: str) -> Message:
    """The script ``plan``; at its third turn it says that it was asked, and never answers."""
    if turn == 2:
        print("third request", flush=True)
        time.sleep(3600)
    return scripted_provider.plan(turn, tool_text)


def first(directory: Path, tools: list[Tool]) -> None:
    state = new_run(SYSTEM, TASK, run_id=RUN_ID)
    asyncio.run(run(state, tools, client_for(plan), store=directory))


def second(directory: Path, tools: list[Tool]) -> None:
    state = load(directory, RUN_ID)
    told = {"restored": _summary(state)}
    asyncio.run(run(state, tools, client_for("plan"), store=directory))
    print(json.dumps({**told, "finished": _summary(state)}))


def _summary(state: RunState) -> dict[str, object]:
    return {
        "turns": state.turns,
        "cost": state.cost_usd,
        "messages": len(state.messages),
        "status": state.status,
        "output": state.output,
    }


if __name__ == "__main__":
    which, where = sys.argv[1], Path(sys.argv[2])
    work = {"first": first, "second": second}[which]
    work(where, counted(catalogue(), _Notes(where / "tools")))
