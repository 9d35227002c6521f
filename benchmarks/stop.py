"""From ``signal.abort()`` to ``run`` returning, inside one process.

    python -m benchmarks.stop [--times N]

Four places in which a run can be when Stop comes: an async tool, a request in flight, the wait
for a retry, a streamed answer.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import report
from harness import AbortSignal, Tool, ToolContext, new_run, run
from scripted_provider import Faults, http_error
from workbook import client_for

TARGET_MS = 2.0
TEXT = "word " * 200


async def sleeps(args: dict[str, Any], ctx: ToolContext) -> str:
    """A tool that would take a minute."""
    await asyncio.sleep(60)
    return "done"


TOOL = Tool("scan_archive", "Takes a minute.", None, sleeps, read_only=True)


def talks(turn: int, tool_text: str) -> dict[str, Any]:
    """A script that answers at length."""
    return {"role": "assistant", "content": TEXT}


async def stopped_after_ms(script: Any, **options: Any) -> float:
    """Milliseconds from the abort, 20 ms into the run, to the run's return."""
    signal = AbortSignal()
    began = 0.0

    def abort() -> None:
        nonlocal began
        began = time.perf_counter()
        signal.abort("stop")

    on_delta: Callable[[str], None] | None = options.pop("on_delta", None)
    asyncio.get_running_loop().call_later(0.02, abort)
    state = await run(
        new_run("", "task"), [TOOL], client_for(script, **options), signal=signal, on_delta=on_delta
    )
    ended = time.perf_counter()
    assert state.status == "interrupted", state.status
    return (ended - began) * 1000


async def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args(argv).times
    always_busy: Faults = {0: http_error(429, retry_after=30)}
    places: dict[str, tuple[Any, dict[str, Any]]] = {
        "an async tool": ("scan", {}),
        "a request in flight": ("plan", {"latency_s": 60.0}),
        "the wait for a retry": ("plan", {"faults": always_busy}),
        "a streamed answer": (talks, {"chunk_delay_s": 0.05, "on_delta": lambda piece: None}),
    }
    ok = True
    for place, (script, options) in places.items():
        each = [await stopped_after_ms(script, **options) for _ in range(times)]
        ok &= report(
            f"stop in {place}, median of {times}", statistics.median(each), TARGET_MS, " ms"
        )
        report("  slowest", max(each), None, " ms")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
