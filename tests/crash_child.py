"""Runs that are killed at every moment, each in a process of its own, and then resumed.

    python -m tests.crash_child SCENARIO DIRECTORY [--lines N] [--twice N]

A *moment* is a place where what can be seen from outside has just changed, or is about to: the
answer is there, a trace line is written, a save begins, its bytes are written, the file is
replaced, a tool is before or after its effect. The program counts the moments of an undisturbed
run; then, for each one, it forks a process that kills itself there (SIGKILL), and another one that
loads what is left and goes on. With ``--lines`` the moments are N of the lines that the harness's
modules execute. With ``--twice`` the second process is killed too, at one of N pairs of moments,
and a third one ends the run.

It prints one JSON object for each kill: where it was, what the file said then, what the person
was asked, the final state, the trace and every effect. tests/test_crash_sweep.py judges them.
Everything is forked from one small process that has imported and compiled all there is, so that a
kill and a resume cost milliseconds. Characters are counted in place of tokens for the same reason.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import httpx

import run_store
import scripted_provider
from catalogue import LOGS, catalogue
from chat_client import ChatClient, price_for
from harness import (
    RunState,
    Tool,
    ToolContext,
    approve,
    load,
    new_run,
    reject,
    run,
    run_as_tool,
    save,
    waiting_calls,
)
from run_store import append_line, write_atomically
from scripted_provider import Message, ScriptedTransport, asks, call, text

RUN_ID = "swept"
MODULES = ("harness.py", "run_state.py", "run_store.py", "tool_calls.py", "limits.py")


# --- the scenarios --------------------------------------------------------------------------------


def writes(turn: int, tool_text: str) -> Message:
    """Several calls at once: side effects before, between and after a read."""
    if turn == 0:
        return asks(
            call("w1", "append", {"path": "a"}),
            call("r1", "read_file", {"path": "errors.log"}),
            call("w2", "append", {"path": "b"}),
        )
    if turn == 1:
        return asks(call("w1", "append", {"path": "a"}))  # the id and the wish, once more
    return text("Three lines were appended.")


def parent(turn: int, tool_text: str) -> Message:
    """Asks a child, then writes itself, then answers with what it was told."""
    if turn == 0:
        return asks(call("p1", "ask_child", {"task": "Tidy up."}))
    return text(f"The child says: {tool_text}")


@dataclass(frozen=True)
class Scenario:
    """``decision``: what the person says to a call that was never started."""

    script: str
    child: str = ""
    decision: str = "approve"


SCENARIOS = {
    "plan": Scenario("plan"),
    "recover": Scenario("recover"),
    "several": Scenario("several"),
    "approved": Scenario("destructive"),
    "rejected": Scenario("destructive", decision="reject"),
    "writes": Scenario("writes"),
    "reading-child": Scenario("parent", child="plan"),
    "approved-child": Scenario("parent", child="destructive"),
    "rejected-child": Scenario("parent", child="destructive", decision="reject"),
    "writing-child": Scenario("parent", child="writes"),
}
SCRIPTS = {**scripted_provider.SCRIPTS, "writes": writes, "parent": parent}


# --- moments --------------------------------------------------------------------------------------


class Moments:
    """Counts what happens, and kills the process at the moment that it was told."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        if len(self.names) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)

    def before(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self(f"before {name}")
            return function(*args, **options)

        return wrapped

    @contextmanager
    def in_files(self) -> Iterator[None]:
        """Moments in each step of a save (before, half written, written) and after trace lines.

        fsync itself is left out: a process that dies takes nothing with it that it has written.
        """
        write_line = run_store._write_line

        def traced(file: Any, event: dict[str, Any]) -> None:
            write_line(file, event)
            self(f"after the line {event['type']}")

        def added(path: Path, text: str, **options: bool) -> None:
            self("before a line")
            size = path.stat().st_size
            with path.open("ab") as file:
                file.write(text[: len(text) // 2].encode())
            self("in the middle of a line")
            os.truncate(path, size)
            append_line(path, text, **options)
            self("after a line")

        with (
            mock.patch("run_state.write_atomically", self.before("a whole", write_atomically)),
            mock.patch("run_state.append_line", added),
            mock.patch("os.fsync", self.before("fsync", lambda descriptor: None)),
            mock.patch("run_store._write_line", traced),
        ):
            yield

    def in_lines(self, frame: FrameType, event: str, argument: Any) -> Any:
        """A trace function (sys.settrace) for which each line of the modules is a moment."""
        file = frame.f_code.co_filename
        if not file.endswith(MODULES):
            return None
        if event == "line":
            self(f"{Path(file).name}:{frame.f_lineno}")
        return self.in_lines


class Carrier(ScriptedTransport):
    """The provider, with a moment after each answer."""

    def __init__(self, moments: Moments) -> None:
        super().__init__(scripted_provider.Provider(SCRIPTS))
        self.moments = moments

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        self.moments("after the answer")
        return response


# --- one process ----------------------------------------------------------------------------------


class Walk:
    """What one process does: begin or load, run, let the person decide, until the run is over."""

    def __init__(self, scenario: Scenario, directory: Path, moments: Moments) -> None:
        self.scenario = scenario
        self.directory = directory
        self.moments = moments
        self.tools = [self.seen(one) for one in (*catalogue(directory / "logs"), self.append())]
        if scenario.child:
            child = run_as_tool("ask_child", "Ask.", "", self.tools, self.client(scenario.child))
            self.tools = [*self.tools, child]

    def client(self, script: str) -> ChatClient:
        carrier = Carrier(self.moments)
        return ChatClient("http://scripted/v1", script, transport=carrier, price=price_for("book"))

    def append(self) -> Tool:
        """A side effect without approval, as a plain function in a thread."""

        def append(args: dict[str, Any], ctx: ToolContext) -> str:
            return f"appended to {args['path']}"

        path = {"type": "object", "properties": {"path": {"type": "string"}}}
        return Tool("append", "Append a line to a file.", path, append)

    def seen(self, tool: Tool) -> Tool:
        """The tool with its effect in a file outside, and moments before and after the effect."""

        def effect(ctx: ToolContext) -> None:
            self.moments(f"{tool.name}: before the effect")
            if not tool.read_only:
                self.note("effects", ctx.idempotency_key)
            self.moments(f"{tool.name}: after the effect")

        async def run_async(args: dict[str, Any], ctx: ToolContext) -> Any:
            effect(ctx)
            if tool.name == "delete_file":  # the effect is the noted line; the file may be gone
                return f"deleted {args['path']}"
            return await tool.run(args, ctx)

        def run_plain(args: dict[str, Any], ctx: ToolContext) -> Any:
            effect(ctx)
            return tool.run(args, ctx)

        return replace(tool, run=run_plain if tool.name == "append" else run_async)

    def note(self, file: str, line: str) -> None:
        with (self.directory / file).open("a", encoding="utf-8") as noted:
            noted.write(f"{line}\n")

    def effects(self) -> list[str]:
        file = self.directory / "effects"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    def to_the_end(self) -> None:
        asyncio.run(self.go_on())

    async def go_on(self) -> None:
        saved = (self.directory / f"{RUN_ID}.json").exists()
        state = load(self.directory, RUN_ID) if saved else new_run("", "Do it.", RUN_ID)
        while True:
            # A process that was killed after the person decided finds the question again.
            for one in waiting_calls(state):
                self.decide(state, one)
            if state.interruption is not None:
                save(state, self.directory)
            await run(
                state,
                self.tools,
                self.client(self.scenario.script),
                store=self.directory,
                trace=self.directory / "trace.jsonl",
            )
            if not waiting_calls(state):
                break
        summary = {"state": asdict(state), "moments": self.moments.names}
        (self.directory / "summary.json").write_text(json.dumps(summary), "utf-8")

    def decide(self, state: RunState, waiting: dict[str, Any]) -> None:
        """The person's part. Before an unknown outcome, they look whether the effect is there."""
        path = waiting["call_id"]
        if "note" not in waiting:
            decisions = {"approve": approve, "reject": reject}
            decisions[self.scenario.decision](state, path)
            return
        self.note("asked", json.dumps([path, waiting["note"]]))
        key = ".".join([RUN_ID, *path.split("/")[:-1]]) + ":" + path.split("/")[-1]
        if key in self.effects():
            reject(state, path, "it is there already")
        else:
            approve(state, path)


# --- many processes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    scenario: Scenario
    root: Path
    by_lines: bool

    def in_a_process(self, directory: Path, kill_at: int | None) -> int:
        """Fork a process that walks on in this directory; how it ended (0, or minus a signal)."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.walk(directory, Moments(kill_at))
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def walk(self, directory: Path, moments: Moments) -> None:
        """Kill points are the lines of the modules, or else all other moments."""
        if not (directory / "logs").exists():
            shutil.copytree(LOGS, directory / "logs")
        if self.by_lines:
            walk = Walk(self.scenario, directory, Moments())
            sys.settrace(moments.in_lines)
            walk.to_the_end()
            sys.settrace(None)
            (directory / "lines.json").write_text(json.dumps(moments.names), "utf-8")
            return
        with moments.in_files():
            Walk(self.scenario, directory, moments).to_the_end()

    def undisturbed(self) -> list[str]:
        """The moments of a run that nobody kills."""
        directory = self.root / "undisturbed"
        assert self.in_a_process(directory, None) == 0
        names: list[str] = (
            json.loads((directory / "lines.json").read_text("utf-8"))
            if self.by_lines
            else json.loads((directory / "summary.json").read_text("utf-8"))["moments"]
        )
        return names

    def run_all(self, kills: Sequence[tuple[int, ...]]) -> None:
        """Kill after kill, in two processes, one for each half of them; print the reports."""
        halves = []
        for half in (0, 1):
            pid = os.fork()
            if pid == 0:
                with (self.root / f"rows-{half}").open("w", encoding="utf-8") as rows:
                    for one in kills[half::2]:
                        rows.write(json.dumps(self.killed(*one)) + "\n")
                os._exit(0)
            halves.append(pid)
        for half, pid in enumerate(halves):
            os.waitpid(pid, 0)
            sys.stdout.write((self.root / f"rows-{half}").read_text("utf-8"))

    def killed(self, *kills: int) -> dict[str, Any]:
        """Kill a run at the first moment, its successor at the second, ...; then let it end."""
        directory = self.root / "-".join(map(str, kills))
        ends, left = [], []
        for kill_at in kills:
            ends.append(self.in_a_process(directory, kill_at))
            file = directory / f"{RUN_ID}.json"
            left.append(asdict(load(directory, RUN_ID)) if file.exists() else None)
        ends.append(self.in_a_process(directory, None))
        return {**report(directory), "kills": kills, "ends": ends, "left": left}


def report(directory: Path) -> dict[str, Any]:
    """What the processes of one directory have left behind."""

    def lines(name: str) -> list[str]:
        file = directory / name
        return file.read_text("utf-8").splitlines() if file.exists() else []

    return {
        "state": json.loads((directory / "summary.json").read_text("utf-8"))["state"],
        "effects": lines("effects"),
        "asked": [json.loads(line) for line in lines("asked")],
        "trace": lines("trace.jsonl"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--twice", type=int, default=0)
    options = parser.parse_args()
    sweep = Sweep(SCENARIOS[options.scenario], options.directory, bool(options.lines))
    with mock.patch("scripted_provider.usage_of", characters):
        sweep.walk(options.directory / "warm", Moments())
        gc.freeze()
        names = sweep.undisturbed()
        print(json.dumps({**report(options.directory / "undisturbed"), "moments": names}))
        sys.stdout.flush()
        step = len(names) // options.lines if options.lines else 1
        kills: list[tuple[int, ...]] = [(number,) for number in range(0, len(names), step)]
        if options.twice:
            chance = random.Random(options.twice)
            pairs = [(number, chance.randrange(len(names))) for (number,) in kills]
            kills = list(chance.sample(pairs, options.twice))
        sweep.run_all(kills)


def characters(request: dict[str, Any], message: Message) -> dict[str, int]:
    prompt, completion = len(json.dumps(request["messages"])), len(json.dumps(message))
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


if __name__ == "__main__":
    main()
