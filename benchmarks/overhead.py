"""The harness's own share of a turn, against a bare httpx loop on the same endpoint.

    python -m benchmarks.overhead [--rounds N] [--peers]

``--peers`` adds whichever of the libraries in requirements-peers.txt are installed, at 50 turns.

The contenders take turns within each round, so that a slow moment of the machine hits all of them;
what is printed are medians over the rounds, as ratios to the bare loop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from benchmarks.common import SYSTEM, TASK, TOOLS, bare_loop, endpoint, report
from benchmarks.peers import LIBRARIES, Library
from chat_client import ChatClient, Reply
from harness import Limits, RunState, new_run, run

FREE = {"in": 0.0, "out": 0.0}
Contender = Callable[[int], Awaitable[Any]]


async def harness_run(client: ChatClient, turns: int, **options: Any) -> RunState:
    return await run(
        new_run(SYSTEM, TASK), TOOLS, client, limits=Limits(max_turns=turns), **options
    )


async def per_turn_ms(
    contenders: dict[str, Contender], turns: int, rounds: int
) -> dict[str, float]:
    """Median milliseconds a turn of each contender; the first round warms up and is not counted.

    Every other round goes through them backwards, and nobody pays for another one's garbage.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for number in range(rounds + 1):
        for name, contender in order if number % 2 else reversed(order):
            gc.collect()
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


async def stored_run(client: ChatClient, turns: int, waits: list[float], **kept: Any) -> None:
    """A run with a trace and a store; adds to ``waits`` its milliseconds in fsync a turn."""
    fsync, spent_s = os.fsync, 0.0

    def timed(descriptor: int) -> None:
        nonlocal spent_s
        began = time.perf_counter()
        fsync(descriptor)
        spent_s += time.perf_counter() - began

    with mock.patch("os.fsync", timed):
        await harness_run(client, turns, **kept)
    waits.append(spent_s * 1000 / turns)


def bare_and_harness(http: httpx.AsyncClient, client: ChatClient, url: str) -> dict[str, Contender]:
    return {
        "bare": lambda turns: bare_loop(http, url, turns),
        "harness": lambda turns: harness_run(client, turns),
    }


async def against_bare(url: str, rounds: int, directory: str) -> bool:
    ok = True
    async with (
        httpx.AsyncClient(timeout=30, verify=False) as http,
        ChatClient(url, "runaway", price=FREE) as client,
    ):
        trace = Path(directory) / "trace.jsonl"
        waits: list[float] = []
        contenders = bare_and_harness(http, client, url) | {
            "trace": lambda turns: harness_run(client, turns, trace=trace),
            "store": lambda turns: stored_run(client, turns, waits, trace=trace, store=directory),
        }
        for turns, share in {3: 1, 50: 2, 200: 6}.items():
            waits.clear()
            each = await per_turn_ms(contenders, turns, max(5, rounds // share))
            bare = each["bare"]
            print(f"\n{turns} turns: bare httpx loop {bare:.2f} ms a turn")
            target = 1.25 if turns in (3, 50) else None
            ok &= report("  harness", each["harness"] / bare, target)
            ok &= report("  harness with a trace", each["trace"] / bare, None)
            ok &= report("  harness with trace and durable store", each["store"] / bare, 2.0)
            report("    of that, waiting for fsync", statistics.median(waits) / bare, None)
    return ok


async def work_alone(name: str, url: str) -> None:
    """Be one contender: for each line that comes, a run of so many turns."""
    async with (
        httpx.AsyncClient(timeout=30, verify=False) as http,
        ChatClient(url, "runaway", price=FREE) as client,
    ):
        contenders = bare_and_harness(http, client, url)
        contenders |= {each: partial(ended, LIBRARIES[each], url) for each in LIBRARIES}
        for line in sys.stdin:
            await contenders[name](int(line))
            print("done", flush=True)


async def ended(library: Library, url: str, turns: int) -> None:
    # Some of them print what they do.
    with redirect_stdout(sys.stderr):
        await library.run(url, turns, "runaway")


@contextmanager
def alone(name: str, url: str) -> Iterator[Contender]:
    """A contender in a process of its own.

    What a library imports, and the threads that it starts, would slow down the others.
    """
    command = [sys.executable, "-m", "benchmarks.overhead", "--alone", name, "--url", url]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=nowhere) as process:
        lines, answers = process.stdin, process.stdout
        assert lines is not None
        assert answers is not None

        async def run_once(turns: int) -> None:
            print(turns, file=lines, flush=True)
            if answers.readline() != "done\n":
                raise RuntimeError(f"{name} ended")

        try:
            yield run_once
        finally:
            lines.close()


async def against_peers(url: str, rounds: int) -> bool:
    """The harness and the installed libraries at 50 turns; the fastest of them sets the target."""
    turns = 50
    installed = [name for name, library in LIBRARIES.items() if library.versions]
    if not installed:
        print("\nno peer library is installed: pip install -r requirements-peers.txt")
        return True
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(alone(name, url)) for name in ("bare", "harness", *installed)
        }
        each = await per_turn_ms(contenders, turns, max(5, rounds // 2))
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
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.alone:
        await work_alone(options.alone, options.url)
        return 0
    with endpoint() as url, tempfile.TemporaryDirectory() as directory:
        ok = await against_bare(url, options.rounds, directory)
        if options.peers:
            ok &= await against_peers(url, options.rounds)
    ok &= await growth()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
