"""1,000 runs in one process: what is left behind.

    python -W error -m benchmarks.soak [--runs N]

Counts what grew between the first hundred runs and the last: objects, memory, tasks, threads, and
the tables that the modules keep.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import threading
import tracemalloc
from typing import Any

import run_state
from catalogue import catalogue, workspace
from harness import AbortSignal, Limits, approve, new_run, run
from workbook import SYSTEM, TASK, client_for

SCRIPTS = ("plan", "recover", "destructive", "several", "scan")


async def one(number: int, tools: list[Any], signal: AbortSignal) -> None:
    """One run of one of the scripts, approved where it asks, with a signal that many runs share."""
    script = SCRIPTS[number % len(SCRIPTS)]
    async with client_for(script) as client:
        state = await run(
            new_run(SYSTEM, TASK), tools, client, limits=Limits(max_turns=8), signal=signal
        )
        if state.interruption and state.interruption["type"] == "approval":
            approve(state, state.interruption["call_id"])
            await run(state, tools, client, signal=signal)


def count(signal: AbortSignal) -> dict[str, int]:
    """What is alive now."""
    gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "bytes traced": tracemalloc.get_traced_memory()[0],
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "runs that count as live": len(run_state.live),
        "callbacks on the signal": len(signal._callbacks),
    }


async def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args(argv).runs
    tools, signal = catalogue(workspace(), step_s=0.0), AbortSignal()
    tracemalloc.start()
    before: dict[str, int] = {}
    for number in range(runs):
        await one(number, tools, signal)
        if number == runs // 10:
            before = count(signal)
    after = count(signal)
    # The counts of tokens are remembered in a bounded table: a little growth is its filling.
    allowed = {"objects": 2000, "bytes traced": 1_000_000}
    grew = False
    for name, amount in after.items():
        grows = amount - before[name] > allowed.get(name, 0)
        grew |= grows
        verdict = "GROWS" if grows else "ok"
        print(f"{name:<26} {before[name]:>12,} -> {amount:>12,}  {verdict}")
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
