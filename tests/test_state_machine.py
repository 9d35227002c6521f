"""Random scripts and random people: whatever happens in whatever order, the invariants hold.

The machine plans what the model will say (texts, calls, faults, broken arguments, ids that are
missing or used again), and then runs, stops, cancels, kills, approves, rejects, saves, loads,
resumes and follows up in any order. Every step ends with the checks of ``tests/invariants.py``.

The examples are the same in every run. To look further than these:

    STATE_MACHINE_EXAMPLES=2000 python -m pytest tests/test_state_machine.py

A failure that this finds becomes, shrunk, a test with a name in test_regressions.py.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from chat_client import ChatClient, price_for
from harness import (
    Limits,
    PermanentToolError,
    RunBusyError,
    RunState,
    Tool,
    ToolContext,
    load,
    run,
    run_as_tool,
    save,
)
from scripted_provider import (
    Fault,
    Message,
    asks,
    dropped,
    empty_choices,
    finish_reason,
    http_error,
    no_usage,
    text,
    transport,
)
from tests.rig import Rig, tool

EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))

# --- what a model says ----------------------------------------------------------------------------

ARGUMENTS = {
    "read_note": ['{"id": 1}', '{"id": 2}', '{"id": 9}'],
    "add_note": ['{"text": "a"}'],
    "send_mail": ['{"text": "hello"}'],
    "works": ["{}"],
    "threads": ["{}"],
    "fails": ["{}"],
    "never": ["{}"],
    "ask_child": ['{"task": "go"}'],
    "unheard_of": ["{}"],
}
BROKEN = ["", "null", "[]", '{"{"id": 1}', "x = 1", '{"id": "one"}', '{"text": "\\ud83d"}']


def a_call(name: str, choice: int, broken: str | None, call_id: str | None) -> Message:
    good = ARGUMENTS[name][choice % len(ARGUMENTS[name])]
    arguments = good if broken is None else broken
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


calls = st.builds(
    a_call,
    st.sampled_from(sorted(ARGUMENTS)),
    st.integers(0, 2),
    st.one_of(st.none(), st.none(), st.none(), st.sampled_from(BROKEN)),
    st.sampled_from(["c1", "c2", "c3", "c4", "c5", "", None, "a b"]),
)
faults = st.sampled_from(
    [
        http_error(500, times=1),
        http_error(429, times=2),
        http_error(401),
        http_error(500),
        dropped(times=1),
        empty_choices(times=1),
        empty_choices(),
        finish_reason("length"),
        finish_reason("content_filter"),
        no_usage(),
    ]
)
some_calls = st.lists(calls, min_size=1, max_size=3).map(lambda some: asks(*some))
texts = st.sampled_from([text("An answer."), text("  "), text("\ud83d half")])
# What the model says in the next turns; mostly calls, so that runs go on.
answers = st.lists(st.one_of(some_calls, some_calls, some_calls, texts), max_size=3)


class Planned:
    """A script that grows while it is played: the answer and the fault of each turn."""

    def __init__(self) -> None:
        self.answers: list[Message] = []
        self.faults: dict[int, Fault] = {}
        scripts = {"planned": lambda turn, said: self.answer(turn)}
        carrier = transport(scripts, faults=self.faults)
        self.client = ChatClient(
            "http://scripted/v1",
            "planned",
            transport=carrier,
            price=price_for("book"),
            max_retries=1,
            sleep=self.no_wait,
        )

    def answer(self, turn: int) -> Message:
        return deepcopy(self.answers[turn]) if turn < len(self.answers) else text("done")

    def plan(self, turn: int, answers: Sequence[Message]) -> None:
        """From this turn on, say these; a turn that was never planned says "done"."""
        del self.answers[turn:]
        self.answers += [text("done")] * (turn - len(self.answers))
        self.answers += answers

    async def no_wait(self, seconds: float) -> None: ...


# --- the tools ------------------------------------------------------------------------------------


async def works(args: dict[str, Any], ctx: ToolContext) -> str:
    for step in range(3):
        ctx.progress(f"step {step}")
        await asyncio.sleep(0)
    return "worked"


def threads(args: dict[str, Any], ctx: ToolContext) -> list[bool]:
    ctx.progress("in a thread")
    return [ctx.signal.aborted]


def fails(args: dict[str, Any], ctx: ToolContext) -> None:
    raise ConnectionError("lost")


def never(args: dict[str, Any], ctx: ToolContext) -> None:
    raise PermanentToolError("not for you")


MORE_TOOLS = [
    tool("works", works),
    tool("threads", threads, read_only=True),
    tool("fails", fails),
    tool("never", never, read_only=True),
]

# --- the machine ----------------------------------------------------------------------------------

moments = st.integers(0, 14)  # the number of an event of a segment
limits = st.sampled_from(
    [Limits(), Limits(None), Limits(1), Limits(3), Limits(max_budget_usd=0.0005)]
)


class Run(RuleBasedStateMachine):
    """One run, and everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.no_fsync = mock.patch("os.fsync")
        self.no_fsync.start()
        self.directory = tempfile.TemporaryDirectory()
        self.store = Path(self.directory.name)
        self.planned, self.child_planned = Planned(), Planned()
        self.rig = Rig(client=self.planned.client, store=self.store, tools=MORE_TOOLS)
        self.rig.clients.append(self.child_planned.client)
        self.rig.tools.append(self.child())

    def child(self) -> Tool:
        return run_as_tool(
            "ask_child", "Ask.", "A child.", self.rig.tools, self.child_planned.client
        )

    def teardown(self) -> None:
        self.directory.cleanup()
        self.no_fsync.stop()

    # What the model will say.

    def prepare(self, answers: list[Message]) -> None:
        """The next turns say these; a run that is over gets a new message first."""
        if self.rig.state.status in ("completed", "failed"):
            self.rig.follow_up("and then?")
        self.planned.plan(self.rig.state.turns, answers)

    @rule(turn=st.integers(0, 2), answers=answers)
    def plan_for_children(self, turn: int, answers: list[Message]) -> None:
        self.child_planned.plan(turn, answers)

    @rule(fault=faults, ahead=st.integers(0, 2), child=st.booleans())
    def plan_a_fault(self, fault: Fault, ahead: int, child: bool) -> None:
        """It happens where a later segment comes to it; turns already answered stay as they are."""
        if child:
            self.child_planned.faults[ahead] = fault
        else:
            self.planned.faults[self.rig.state.turns + ahead] = fault
        self.rig.priced = False

    # Segments.

    @rule(answers=answers, limits=limits, dedupe=st.sampled_from([False, True]))
    def go_on(self, answers: list[Message], limits: Limits, dedupe: bool) -> None:
        self.prepare(answers)
        self.rig.run(limits=limits, dedupe=dedupe)

    @rule(answers=answers, moment=moments)
    def go_on_and_stop(self, answers: list[Message], moment: int) -> None:
        self.prepare(answers)
        self.at_event(moment, self.rig.stop)
        self.rig.run()

    @rule(answers=answers, moment=moments)
    def go_on_and_cancel_the_task(self, answers: list[Message], moment: int) -> None:
        self.prepare(answers)

        async def cancelled() -> None:
            task = asyncio.ensure_future(self.rig.go_on())
            self.at_event(moment, task.cancel)
            try:
                await task
            except asyncio.CancelledError:
                self.rig.check()
                assert load(self.store, "rig") == self.rig.state

        asyncio.run(cancelled())

    @rule(answers=answers, moment=moments)
    def go_on_and_be_killed(self, answers: list[Message], moment: int) -> None:
        """The process dies at that event: what is saved and what was done by then remains."""
        self.prepare(answers)
        save(self.rig.state, self.store)
        file = self.store / "rig.json"
        remains: list[Any] = []

        def note() -> None:
            rig = self.rig
            remains[:] = [
                file.read_bytes(),
                list(rig.effects),
                Counter(rig.executions),
                list(rig.events),
                dict(rig.notes),
            ]

        self.at_event(moment, note)
        self.rig.run()
        if not remains:
            return
        saved, effects, executions, events, notes = remains
        file.write_bytes(saved)
        self.rig.state = load(self.store, "rig")
        self.rig.effects[:], self.rig.events[:] = effects, events
        self.rig.executions.clear()
        self.rig.executions.update(executions)
        self.rig.notes.clear()
        self.rig.notes.update(notes)
        self.rig.kills += 1

    @rule(answers=answers)
    def resume_twice_at_once(self, answers: list[Message]) -> None:
        self.prepare(answers)
        save(self.rig.state, self.store)
        copies = [load(self.store, "rig"), load(self.store, "rig")]

        async def resume(state: RunState) -> RunState:
            client, note = self.planned.client, self.rig.note_event
            return await run(state, self.rig.tools, client, store=self.store, trace=note)

        async def twice() -> list[RunState | BaseException]:
            return list(await asyncio.gather(*map(resume, copies), return_exceptions=True))

        outcomes = asyncio.run(twice())
        winners = [one for one in outcomes if isinstance(one, RunState)]
        refused = [one for one in outcomes if isinstance(one, RunBusyError)]
        assert len(winners) + len(refused) == 2
        assert len(winners) == 1
        self.rig.state = winners[0]
        assert load(self.store, "rig") == self.rig.state
        self.rig.check()

    def at_event(self, number: int, act: Callable[[], object]) -> None:
        left = [number]

        def on_event(event: dict[str, Any]) -> None:
            if left[0] == 0:
                act()
            left[0] -= 1

        self.rig.on_event = on_event

    # What a person does.

    @precondition(lambda self: self.undecided())
    @rule(approvals=st.lists(st.booleans(), max_size=4))
    def decide(self, approvals: list[bool]) -> None:
        """Some of the calls that wait, in order; False rejects."""
        for path, approval in zip(self.undecided(), approvals, strict=False):
            if approval:
                self.rig.approve(path)
            else:
                self.rig.reject(path, "not now \udc97")

    @precondition(lambda self: self.undecided())
    @rule(approval=st.booleans(), moment=st.none() | moments)
    def decide_and_go_on(self, approval: bool, moment: int | None) -> None:
        self.decide([approval] * 9)
        if moment is not None:
            self.at_event(moment, self.rig.stop)
        self.rig.run()

    def undecided(self) -> list[str]:
        return [path for path in self.rig.waiting() if not self.decided(path)]

    def decided(self, path: str) -> bool:
        state = self.rig.state
        *parents, own_id = path.split("/")
        for one in parents:
            state = state.children[one]
        started = own_id in state.started
        return own_id in state.rejected or (own_id in state.approved and not started)

    @precondition(lambda self: self.rig.events)
    @rule()
    def reload(self) -> None:
        self.rig.reload()

    @rule(words=st.sampled_from(["and then?", "\ud83d"]))
    def follow_up(self, words: str) -> None:
        self.rig.follow_up(words)


TestRun = Run.TestCase
TestRun.settings = settings(
    max_examples=EXAMPLES or 60,
    stateful_step_count=25,
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
