"""The harness's own share of a turn, against a bare httpx loop on the same endpoint.

    python -m benchmarks.overhead [--rounds N] [--peers]

``--peers`` adds whichever of the libraries in requirements-peers.txt are installed, at 50 turns.

The contenders take turns within each round, so that a slow moment of the machine hits all of them;
what is printed are medians over the rounds, as ratios to the bare loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common import SYSTEM, TASK, TOOLS, bare_loop, endpoint, report
from benchmarks.peers import LIBRARIES, Library
from chat_client import ChatClient, Reply
from harness import Limits, RunState, new_run, run, save

FREE = {"in": 0.0, "out": 0.0}
Contender = Callable[[int], Awaitable[Any]]


async def harness_run(client: ChatClient, turns: int, **options: Any) -> RunState:
    return await run(
        new_run(SYSTEM, TASK), TOOLS, client, limits=Limits(max_turns=turns), **options
    )


async def per_turn_ms(
    contenders: dict[str, Contender], turns: int, rounds: int
) -> dict[str, float]:
    """Median milliseconds a turn of each contender; the first round warms up and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            began = time.perf_counter()
            await contender(turns)
            if number:
                times[name].append((time.perf_counter() - began) * 1000 / turns)
    return {name: statistics.median(each) for name, each in times.items()}


class InstantClient:
    """Answers at once, as ``runaway`` does: what is left is the harness's own time."""

    async def complete(self, messages: Any, tools: Any, *, on_delta: Any = None) -> Reply:
        turn = len(messages)
        function = {"name": "list_files", "arguments": "{}"}
        calls = [{"id": f"c{turn}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return Reply(
            message, "tool_calls", None, {"prompt_tokens": 0, "completion_tokens": 0}, FREE
        )


async def own_ms(turns: int, repeats: int = 20) -> float:
    """Median milliseconds of the harness's own for one turn, near turn ``turns`` of a run."""
    times = []
    for _ in range(repeats):
        state = await run(new_run(SYSTEM, TASK), TOOLS, InstantClient(), limits=Limits(turns))
        began = time.perf_counter()
        await run(state, TOOLS, InstantClient(), limits=Limits(turns + 20))
        times.append((time.perf_counter() - began) * 1000 / 20)
    return statistics.median(times)


async def body_ms(turns: int) -> float:
    """Milliseconds to write the request body of that turn as JSON, and to read it."""
    state = await run(new_run(SYSTEM, TASK), TOOLS, InstantClient(), limits=Limits(turns))
    began = time.perf_counter()
    for _ in range(50):
        json.loads(json.dumps(state.messages))
    return (time.perf_counter() - began) * 1000 / 50


def fsync_ms(directory: str) -> float:
    """Median milliseconds of one fsync of a small file here."""
    times = []
    with (Path(directory) / "fsync").open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(b"x" * 4096)
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def save_ms(directory: str, turns_state: RunState) -> float:
    """Median milliseconds of one durable save of a state."""
    times = []
    for _ in range(30):
        began = time.perf_counter()
        save(turns_state, directory)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def against_bare(url: str, rounds: int, directory: str) -> bool:
    ok = True
    async with (
        httpx.AsyncClient(timeout=30, verify=False) as http,
        ChatClient(url, "runaway", price=FREE) as client,
    ):
        trace = Path(directory) / "trace.jsonl"
        contenders: dict[str, Contender] = {
            "bare": lambda turns: bare_loop(http, url, turns),
            "harness": lambda turns: harness_run(client, turns),
            "trace": lambda turns: harness_run(client, turns, trace=trace),
            "store": lambda turns: harness_run(client, turns, trace=trace, store=directory),
        }
        for turns in (3, 50, 200):
            each = await per_turn_ms(contenders, turns, max(5, rounds * 3 // turns))
            bare = each["bare"]
            print(f"\n{turns} turns: bare httpx loop {bare:.2f} ms a turn")
            target = 1.25 if turns in (3, 50) else None
            ok &= report("  harness", each["harness"] / bare, target)
            ok &= report("  harness with a trace", each["trace"] / bare, None)
            ok &= report("  harness with trace and durable store", each["store"] / bare, 2.0)
    return ok


async def against_peers(url: str, rounds: int) -> bool:
    """The harness and the installed libraries at 50 turns; the fastest of them sets the target."""
    turns = 50

    def of(library: Library) -> Contender:
        return lambda turns: library.run(url, turns, "runaway")

    installed = {name: library for name, library in LIBRARIES.items() if library.versions}
    if not installed:
        print("\nno peer library is installed: pip install -r requirements-peers.txt")
        return True
    async with (
        httpx.AsyncClient(timeout=30, verify=False) as http,
        ChatClient(url, "runaway", price=FREE) as client,
    ):
        contenders: dict[str, Contender] = {
            "bare": lambda turns: bare_loop(http, url, turns),
            "harness": lambda turns: harness_run(client, turns),
        }
        for name, library in installed.items():
            contenders[name] = of(library)
        each = await per_turn_ms(contenders, turns, max(3, rounds // 10))
    print(f"\n{turns} turns beside the libraries: bare httpx loop {each['bare']:.2f} ms a turn")
    for name in ("harness", *installed):
        report(f"  {name}", each[name] / each["bare"], None)
    fastest = min(each[name] for name in installed)
    return report("  harness over the fastest library", each["harness"] / fastest, 0.1)


async def growth() -> bool:
    early, late = await own_ms(50), await own_ms(200)
    body = await body_ms(200) - await body_ms(50)
    print(f"\nthe harness alone: {early:.3f} ms a turn at turn 50, {late:.3f} at turn 200")
    return report("  growth over growth of the body's JSON", (late - early) / body, 1.0)


async def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args(argv)
    with endpoint() as url, tempfile.TemporaryDirectory() as directory:
        ok = await against_bare(url, options.rounds, directory)
        if options.peers:
            ok &= await against_peers(url, options.rounds)
        state = await harness_run(ChatClient(url, "runaway", price=FREE), 50)
        print(
            f"\none fsync {fsync_ms(directory):.2f} ms; one save {save_ms(directory, state):.2f} ms"
        )
    ok &= await growth()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
