"""What counting tokens costs: the 100-turn runaway, whole, against a bare loop without counting.

python -m benchmarks.counting [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

import httpx

from benchmarks.common import TOOLS, bare_loop, report
from harness import Limits, new_run, run
from scripted_provider import count_tokens, transport
from workbook import SYSTEM, TASK, client_for

TURNS = 100


async def bare_ms() -> float:
    """The bare loop on the same kind of transport, without counting."""
    async with httpx.AsyncClient(transport=transport(count=False)) as http:
        began = time.perf_counter()
        await bare_loop(http, "http://scripted/v1", TURNS)
        return (time.perf_counter() - began) * 1000


async def counted_ms() -> float:
    """The harness with the counting provider, in the kernel, as chapter 02 runs it."""
    client = client_for("runaway")
    began = time.perf_counter()
    await run(new_run(SYSTEM, TASK), TOOLS, client, limits=Limits(max_turns=TURNS))
    return (time.perf_counter() - began) * 1000


async def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(argv).rounds
    count_tokens("the vocabulary loads once a process")
    bare, counted = [], []
    for _ in range(rounds):
        bare.append(await bare_ms())
        counted.append(await counted_ms())
    base = statistics.median(bare)
    print(f"bare loop, {TURNS} turns, no counting: {base:.1f} ms")
    ok = report("harness with every token counted", statistics.median(counted) / base, 4.0)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
