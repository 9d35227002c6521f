"""The public names of the harness and the rules that hold for every run.

What broke other harnesses is in test_edge_cases.py; the figures are in test_figures.py. Runs go
through the rig where they can, so that the seven invariants are checked at the end of each.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

import harness
from catalogue import catalogue
from harness import (
    AbortSignal,
    Limits,
    PermanentToolError,
    RunBusyError,
    RunState,
    RunStatus,
    RunStoreError,
    StopCondition,
    Tool,
    ToolContext,
    approve,
    budget,
    cost,
    deadline,
    follow_up,
    load,
    new_run,
    pending,
    reject,
    run,
    run_as_tool,
    save,
    turn_cap,
    waiting_calls,
)
from scripted_provider import asks, call, http_error, text
from tests.rig import Rig, client_of, journal_of, tool
from tests.support import counted, go
from workbook import SYSTEM, TASK, client_for

READ = asks(call("n1", "read_note", {"id": 1}))
ADD = asks(call("a1", "add_note", {"text": "new"}))
MAIL = asks(call("m1", "send_mail", {"text": "hello"}))
FOREVER = [asks(call(f"n{turn}", "read_note", {"id": 1})) for turn in range(50)]


# --- names ----------------------------------------------------------------------------------------


def test_the_public_names() -> None:
    states = {"RunState", "RunStatus", "new_run", "run", "follow_up", "save", "load", "cost"}
    tools = {"Tool", "ToolContext", "PermanentToolError", "run_as_tool"}
    decisions = {"Limits", "AbortSignal", "pending", "approve", "reject"}
    assert states | tools | decisions <= set(harness.__all__)
    for name in harness.__all__:
        assert hasattr(harness, name)


def test_the_statuses() -> None:
    assert get_args(RunStatus) == (
        "running",
        "completed",
        "failed",
        "max_turns_exceeded",
        "budget_exceeded",
        "interrupted",
    )


def test_everything_after_the_client_is_given_by_name() -> None:
    parameters = inspect.signature(run).parameters
    positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["state", "tools", "client"]
    told = {"trace", "on_progress", "on_delta", "tool_error_text", "store"}
    rules = {"limits", "signal", "stop_when", "dedupe", "tool_errors_are_fatal"}
    assert told | rules <= set(parameters)


# --- a new run ------------------------------------------------------------------------------------


def test_a_new_run_holds_the_two_opening_messages() -> None:
    state = new_run("Be brief.", "Which file?")
    assert state.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Which file?"},
    ]
    assert (state.status, state.turns, state.cost_usd, state.output) == ("running", 0, 0.0, "")
    assert not state.resumable
    assert pending(state) == []


def test_without_a_system_prompt_there_is_no_system_message() -> None:
    assert [message["role"] for message in new_run("", "Which file?").messages] == ["user"]


def test_a_run_gets_an_id_of_its_own_unless_it_is_given_one() -> None:
    assert len({new_run("", "x").run_id for _ in range(100)}) == 100
    assert new_run("", "x", "monday").run_id == "monday"
    with pytest.raises(ValueError, match="not usable as a file name"):
        new_run("", "x", "../monday")


# --- the five exits -------------------------------------------------------------------------------


def exits() -> dict[str, Rig]:
    """A run that stops for each reason."""
    aborted = Rig(READ, text("ok"))

    def stop_after_the_first_turn(event: dict[str, Any]) -> None:
        aborted.note_event(event)
        if event["type"] == "turn":
            aborted.stop("enough")

    aborted.options["trace"] = stop_after_the_first_turn
    return {
        "completed": Rig(READ, text("ok")),
        "failed": Rig(http_error(401)),
        "max_turns": Rig(*FOREVER, limits=Limits(max_turns=2)),
        "max_budget": Rig(*FOREVER, limits=Limits(max_budget_usd=0.0001)),
        "approval": Rig(MAIL),
        "cancelled": aborted,
        "stop_condition": Rig(*FOREVER, stop_when=[lambda state: state.turns == 1]),
    }


@pytest.mark.parametrize(
    ("why", "status", "interruption", "resumable"),
    [
        ("completed", "completed", None, False),
        ("failed", "failed", None, False),
        ("max_turns", "max_turns_exceeded", {"type": "max_turns"}, True),
        ("max_budget", "budget_exceeded", {"type": "max_budget"}, True),
        (
            "approval",
            "interrupted",
            {
                "type": "approval",
                "call_id": "m1",
                "tool_name": "send_mail",
                "args": {"text": "hello"},
            },
            True,
        ),
        ("cancelled", "interrupted", {"type": "cancelled", "reason": "enough"}, True),
        ("stop_condition", "interrupted", {"type": "stop_condition", "name": "<lambda>"}, True),
    ],
)
def test_each_exit_is_data(why: str, status: str, interruption: Any, resumable: bool) -> None:
    rig = exits()[why]
    rig.run()
    assert rig.state.status == status
    assert rig.state.interruption == interruption
    assert rig.state.resumable is resumable
    assert (rig.state.error is not None) is (status == "failed")
    assert rig.state.output == ("ok" if status == "completed" else "")
    (stopped,) = rig.of_type("run_stopped")
    assert stopped["status"] == status
    said = {"completed": "answered", "failed": "HTTP 401: Incorrect API key provided."}
    assert stopped["reason"] == said.get(why, why)


@pytest.mark.parametrize("why", ["max_turns", "max_budget", "cancelled", "stop_condition"])
def test_what_is_resumable_goes_on_where_it_was(why: str) -> None:
    rig = exits()[why]
    rig.run()
    turns, spent = rig.state.turns, rig.state.cost_usd
    rig.options = {"limits": Limits(max_turns=turns + 1)}
    rig.run()
    assert rig.state.turns == turns + 1
    assert rig.state.cost_usd > spent
    assert rig.requests == turns + 1  # nothing was asked twice


@pytest.mark.parametrize("why", ["completed", "failed"])
def test_what_is_final_comes_back_as_it_is(why: str) -> None:
    rig = exits()[why]
    rig.run()
    before, requests = asdict(rig.state), rig.requests
    rig.run()
    assert asdict(rig.state) == before
    assert rig.requests == requests


def test_run_returns_the_state_that_it_was_given() -> None:
    state = new_run("", "Hello?")
    assert go(run(state, [], client_of(text("Hello.")))) is state


def test_a_state_of_another_version_is_refused() -> None:
    state = new_run("", "Hello?")
    state.version = 99
    with pytest.raises(ValueError, match="no such state version: 99"):
        go(run(state, [], client_of(text("Hello."))))


# --- limits ---------------------------------------------------------------------------------------


def test_the_default_limits_are_20_turns_and_no_budget() -> None:
    assert (Limits().max_turns, Limits().max_budget_usd) == (20, None)
    rig = Rig(*FOREVER)
    rig.run()
    assert (rig.state.status, rig.state.turns) == ("max_turns_exceeded", 20)


def test_none_lifts_the_cap() -> None:
    rig = Rig(*FOREVER[:25], text("ok"), limits=Limits(max_turns=None))
    rig.run()
    assert (rig.state.status, rig.state.turns) == ("completed", 26)


@pytest.mark.parametrize("limit", [-1, -0.01, float("nan"), float("-inf"), "20"])
@pytest.mark.parametrize("name", ["max_turns", "max_budget_usd"])
def test_a_limit_that_is_none_is_a_clear_error(name: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 0 or more, or None for no limit; not"):
        Limits(**{name: limit})


def test_limits_count_over_the_whole_run_and_not_from_the_resume() -> None:
    rig = Rig(*FOREVER, limits=Limits(max_turns=3))
    rig.run()
    rig.run()
    assert (rig.state.turns, rig.requests) == (3, 3)


def test_a_cap_and_a_budget_are_predicates_of_the_same_kind() -> None:
    state = new_run("", "x")
    state.turns, state.cost_usd = 3, 0.05
    assert [turn_cap(n).met(state) for n in (2, 3, 4)] == [True, True, False]
    assert [budget(usd).met(state) for usd in (0.04, 0.05, 0.06)] == [True, True, False]
    rig = Rig(*FOREVER, stop_when=[turn_cap(2)])
    rig.run()
    assert rig.state.status == "max_turns_exceeded"
    assert rig.state.interruption == {"type": "max_turns"}


def test_a_deadline_is_a_predicate_over_a_clock() -> None:
    now = [100.0]
    condition = deadline(5, clock=lambda: now[0])
    state = new_run("", "x")
    assert not condition.met(state)
    now[0] = 105.0
    assert condition.met(state)
    assert (condition.name, condition.status) == ("deadline", "interrupted")


# --- stop conditions ------------------------------------------------------------------------------


def at_two(state: RunState) -> bool:
    return state.turns == 2


def test_a_stop_condition_is_named_after_its_function() -> None:
    rig = Rig(*FOREVER, stop_when=[at_two])
    rig.run()
    assert rig.state.interruption == {"type": "stop_condition", "name": "at_two"}
    assert rig.state.turns == 2


def test_a_stop_condition_can_be_given_a_name() -> None:
    rig = Rig(*FOREVER, stop_when=[StopCondition("two turns", at_two)])
    rig.run()
    assert rig.state.interruption == {"type": "stop_condition", "name": "two turns"}


def test_a_callable_without_a_name_will_do() -> None:
    class Nameless:
        def __call__(self, state: RunState) -> bool:
            return state.turns == 1

    rig = Rig(*FOREVER, stop_when=[Nameless()])
    rig.run()
    assert rig.state.interruption == {"type": "stop_condition", "name": "stop condition"}


def test_conditions_are_asked_in_order_and_the_first_that_is_met_decides() -> None:
    asked: list[str] = []

    def condition(name: str) -> StopCondition:
        def met(state: RunState) -> bool:
            asked.append(f"{name}{state.turns}")
            return state.turns == 1

        return StopCondition(name, met)

    rig = Rig(*FOREVER, stop_when=[condition("a"), condition("b")])
    rig.run()
    assert rig.state.interruption == {"type": "stop_condition", "name": "a"}
    # Before each turn, and again before the calls of its answer are settled.
    assert [one for one in asked if one.endswith("0")] == ["a0", "b0"]
    assert asked[-1] == "a1"
    assert "b1" not in asked


@pytest.mark.parametrize(
    ("limits", "stop_when", "status"),
    [
        (Limits(max_turns=1, max_budget_usd=0.0), [at_two], "budget_exceeded"),
        (Limits(max_turns=0, max_budget_usd=0.0), [], "max_turns_exceeded"),
        (Limits(max_turns=2), [at_two], "max_turns_exceeded"),
        (Limits(max_turns=3), [at_two], "interrupted"),
    ],
)
def test_the_cap_comes_first_then_the_budget_then_the_callers_own(
    limits: Limits, stop_when: list[Any], status: str
) -> None:
    rig = Rig(*FOREVER, limits=limits, stop_when=stop_when)
    rig.run()
    assert rig.state.status == status


# --- follow_up ------------------------------------------------------------------------------------


def test_a_follow_up_goes_on_after_an_answer() -> None:
    rig = Rig(text("Three."), text("errors.log."))
    rig.run()
    rig.follow_up("Which is the largest?")
    assert (rig.state.status, rig.state.output) == ("running", "")
    rig.run()
    assert rig.state.output == "errors.log."
    roles = [message["role"] for message in rig.state.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert rig.state.turns == 2


def test_a_follow_up_goes_on_after_a_failure() -> None:
    rig = Rig(http_error(500, times=3), text("ok"))
    rig.run()
    assert rig.state.status == "failed"
    rig.follow_up("Try again.")
    assert rig.state.error is None
    rig.options["limits"] = Limits()
    rig.client = client_of(text("ok"))
    rig.clients.append(rig.client)
    rig.run()
    assert (rig.state.status, rig.state.output) == ("completed", "ok")


def test_a_follow_up_instead_of_a_decision_closes_the_open_call_in_words() -> None:
    rig = Rig(MAIL, text("All right."))
    rig.run()
    rig.follow_up("Never mind.")
    assert pending(rig.state) == []
    assert rig.told("m1") == "Not executed: the user went on before this call was started."
    rig.run()
    assert rig.effects == []


def test_a_follow_up_keeps_the_reason_of_a_rejection() -> None:
    rig = Rig(MAIL, text("All right."))
    rig.run()
    rig.reject("m1", "wrong customer")
    rig.follow_up("Never mind.")
    assert "wrong customer" in rig.told("m1")
    rig.run()


def test_no_follow_up_into_a_run_that_is_running() -> None:
    async def check() -> None:
        inside = asyncio.Event()

        async def waits(args: dict[str, Any], ctx: ToolContext) -> str:
            inside.set()
            await ctx.signal.wait()
            return ""

        signal, state = AbortSignal(), new_run("", "Do it.")
        tools = [tool("waits", waits)]
        client = client_of(asks(call("w1", "waits")))
        task = asyncio.create_task(run(state, tools, client, signal=signal))
        await inside.wait()
        messages = list(state.messages)
        with pytest.raises(RunBusyError, match="is running; stop it before you go on"):
            follow_up(state, "Are you there?")
        assert state.messages == messages
        signal.abort()
        await task

    go(check())


# --- pending, cost --------------------------------------------------------------------------------


def test_pending_are_the_unanswered_calls_of_the_last_assistant_message() -> None:
    state = new_run("", "x")
    first, second = call("a", "x"), call("b", "x")
    state.messages.append(asks(first, second))
    assert pending(state) == [first, second]
    state.messages.append({"role": "tool", "tool_call_id": "b", "content": ""})
    assert pending(state) == [first]
    state.messages.append({"role": "tool", "tool_call_id": "a", "content": ""})
    assert pending(state) == []
    state.messages.append(asks(first))  # the same id once more is another call
    assert pending(state) == [first]
    state.messages.append({"role": "user", "content": "go on"})
    assert pending(state) == []


def test_cost() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    assert cost(usage) == pytest.approx(0.0032)
    assert cost(usage, {"in": 1.0, "out": 10.0}) == pytest.approx(0.002)
    cached = {**usage, "cached_tokens": 600}
    assert cost(cached, {"in": 1.0, "out": 10.0, "cached": 0.5}) == pytest.approx(0.0017)
    assert cost(cached, {"in": 1.0, "out": 10.0}) == pytest.approx(0.002)


# --- tools ----------------------------------------------------------------------------------------


async def nothing(args: dict[str, Any], ctx: ToolContext) -> str:
    return ""


@pytest.mark.parametrize("name", ["", "two words", "a" * 65, "näme", "a/b"])
def test_a_tool_name_that_no_endpoint_takes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="tool name"):
        Tool(name, "", None, nothing)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_of_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_s of now must be above 0 or None"):
        Tool("now", "", None, nothing, timeout_s=seconds)


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="the parameters of now are no JSON Schema"):
        Tool("now", "", {"type": "text"}, nothing)


def test_what_the_model_is_told_of_a_tool() -> None:
    parameters = {"type": "object", "properties": {"zone": {"type": "string"}}}
    assert Tool("now", "The time.", parameters, nothing).spec == {
        "type": "function",
        "function": {"name": "now", "description": "The time.", "parameters": parameters},
    }
    empty = Tool("now", "The time.", None, nothing).spec["function"]["parameters"]
    assert empty == {"type": "object", "properties": {}}


def test_the_tools_go_with_every_request() -> None:
    rig = Rig(READ, text("ok"))
    rig.run()
    specs = [one.spec for one in rig.tools]
    assert [exchange.request["tools"] for exchange in rig.exchanges] == [specs, specs]


def test_what_a_tool_is_given() -> None:
    seen: list[tuple[dict[str, Any], ToolContext]] = []

    async def looks(args: dict[str, Any], ctx: ToolContext) -> str:
        seen.append((args, ctx))
        return ""

    looks_tool = tool("looks", looks, {"type": "object", "properties": {"a": {}}})
    two = asks(call("c1", "looks", {"a": [1, None]}), call("c2", "looks"))
    rig = Rig(two, text("ok"), tools=[looks_tool])
    rig.run()
    assert [args for args, _ in seen] == [{"a": [1, None]}, {}]
    first, second = (ctx for _, ctx in seen)
    assert (first.run_id, first.call_id) == ("rig", "c1")
    assert first.idempotency_key == "rig:c1"
    assert second.idempotency_key == "rig:c2"
    assert not first.signal.aborted


def test_calls_of_one_message_run_one_after_another_in_their_order() -> None:
    order: list[str] = []

    async def slow(args: dict[str, Any], ctx: ToolContext) -> str:
        order.append(f"{ctx.call_id} begins")
        await asyncio.sleep(0)
        order.append(f"{ctx.call_id} ends")
        return ""

    three = asks(*[call(name, "slow") for name in ("z", "a", "m")])
    rig = Rig(three, text("ok"), tools=[tool("slow", slow)])
    rig.run()
    assert order == [f"{name} {what}" for name in ("z", "a", "m") for what in ("begins", "ends")]
    answers = [m["tool_call_id"] for m in rig.state.messages if m["role"] == "tool"]
    assert answers == ["z", "a", "m"]


def test_a_plain_function_runs_in_a_thread_with_the_callers_context() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    threads: list[threading.Thread] = []

    def plain(args: dict[str, Any], ctx: ToolContext) -> str:
        threads.append(threading.current_thread())
        return who.get()

    who.set("the reader")
    rig = Rig(asks(call("p1", "plain")), text("ok"), tools=[tool("plain", plain)])
    rig.run()
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon  # one that ignores the signal does not keep the process alive
    assert rig.told("p1") == "the reader"


def test_a_coroutine_runs_in_the_loops_own_thread() -> None:
    threads: list[threading.Thread] = []

    async def coroutine(args: dict[str, Any], ctx: ToolContext) -> str:
        threads.append(threading.current_thread())
        return ""

    Rig(asks(call("p1", "coroutine")), text("ok"), tools=[tool("coroutine", coroutine)]).run()
    assert threads == [threading.main_thread()]


# --- a tool's time limit --------------------------------------------------------------------------


def test_a_tool_that_takes_too_long_is_stopped_and_the_run_goes_on() -> None:
    ended: list[str] = []

    async def slow(args: dict[str, Any], ctx: ToolContext) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(str(ctx.signal.reason))
        return "late"

    slow_tool = tool("slow", slow, timeout_s=0.02, read_only=True)
    rig = Rig(asks(call("s1", "slow")), text("ok"), tools=[slow_tool])
    rig.run()
    assert rig.told("s1") == "Error: no result after 0.02 s; it was stopped"
    assert ended == ["slow ran longer than 0.02 s"]
    assert rig.state.status == "completed"
    assert not rig.signal.aborted  # the run's own signal is not the tool's


def test_a_thread_is_told_of_its_time_limit_by_the_signal() -> None:
    def slow(args: dict[str, Any], ctx: ToolContext) -> str:
        assert ctx.signal.wait_blocking(60)
        raise RuntimeError("gave up")

    slow_tool = tool("slow", slow, timeout_s=0.02)
    rig = Rig(asks(call("s1", "slow")), text("ok"), tools=[slow_tool])
    rig.run()
    assert rig.told("s1").startswith("Error: no result after 0.02 s; it was stopped")
    assert rig.state.status == "completed"


# --- tool errors ----------------------------------------------------------------------------------


def failing(error: BaseException) -> Tool:
    async def fails(args: dict[str, Any], ctx: ToolContext) -> str:
        raise error

    return tool("fails", fails)


FAILS = asks(call("f1", "fails"))


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("no such day"), "Error: no such day"), (ValueError(), "Error: ValueError")],
)
def test_an_error_goes_back_as_data(error: Exception, words: str) -> None:
    rig = Rig(FAILS, text("ok"), tools=[failing(error)])
    rig.run()
    assert rig.state.status == "completed"
    assert rig.told("f1") == words
    (result,) = rig.of_type("tool_result")
    assert result["ok"] is False


def test_the_words_of_an_error_can_be_chosen() -> None:
    rig = Rig(
        FAILS,
        text("ok"),
        tools=[failing(ValueError("secret detail"))],
        tool_error_text=lambda error: f"{type(error).__name__}, try another day",
    )
    rig.run()
    assert rig.told("f1") == "ValueError, try another day"


def test_tool_errors_can_be_fatal() -> None:
    rig = Rig(FAILS, tools=[failing(ValueError("no such day"))], tool_errors_are_fatal=True)
    rig.run()
    assert (rig.state.status, rig.state.error) == ("failed", "no such day")
    assert rig.told("f1") == "Error: no such day"
    assert rig.requests == 1


@pytest.mark.parametrize("options", [{}, {"tool_error_text": lambda error: "never mind"}])
def test_a_permanent_error_ends_the_run_with_its_reason(options: dict[str, Any]) -> None:
    rig = Rig(FAILS, tools=[failing(PermanentToolError("the account is closed"))], **options)
    rig.run()
    assert (rig.state.status, rig.state.error) == ("failed", "the account is closed")
    assert rig.told("f1") == "Error: the account is closed"
    assert rig.requests == 1


def test_a_bad_call_is_no_tool_error() -> None:
    """Fatal tool errors are about tools; the model may mend its call."""
    bad = asks(call("b1", "read_note", '{"id": "one"}'))
    rig = Rig(bad, text("ok"), tool_errors_are_fatal=True)
    rig.run()
    assert rig.state.status == "completed"


# --- the same call twice --------------------------------------------------------------------------


@pytest.mark.parametrize(("dedupe", "runs"), [(False, 2), (True, 1), ("all", 1)])
def test_a_repeated_read_is_answered_from_memory_when_asked_for(dedupe: Any, runs: int) -> None:
    done: list[str] = []
    events: list[dict[str, Any]] = []
    state = new_run(SYSTEM, TASK)
    tools = counted(catalogue(), done)
    go(run(state, tools, client_for("repeat"), dedupe=dedupe, trace=events.append))
    assert len(done) == runs
    first, second = (m["content"] for m in state.messages if m["role"] == "tool")
    assert first == second
    cached = [e.get("cached", False) for e in events if e["type"] == "tool_result"]
    assert cached == [False, runs == 1]
    assert len([e for e in events if e["type"] == "tool_start"]) == runs


@pytest.mark.parametrize(("dedupe", "runs"), [(False, 2), (True, 2), ("all", 1)])
def test_a_repeated_write_is_swallowed_only_by_the_naive_variant(dedupe: Any, runs: int) -> None:
    again = asks(call("a2", "add_note", {"text": "new"}))
    rig = Rig(ADD, again, text("ok"), dedupe=dedupe)
    rig.run()
    assert len(rig.effects) == runs


def test_the_order_of_the_arguments_makes_no_other_call() -> None:
    done: list[dict[str, Any]] = []

    async def pair(args: dict[str, Any], ctx: ToolContext) -> str:
        done.append(args)
        return ""

    both = {"type": "object", "properties": {"a": {}, "b": {}}}
    calls = asks(
        call("c1", "pair", '{"a": 1, "b": 2}'),
        call("c2", "pair", '{"b": 2, "a": 1}'),
        call("c3", "pair", '{"a": 1, "b": "2"}'),
    )
    rig = Rig(calls, text("ok"), tools=[tool("pair", pair, both, read_only=True)], dedupe=True)
    rig.run()
    assert done == [{"a": 1, "b": 2}, {"a": 1, "b": "2"}]


def test_what_was_remembered_is_forgotten_with_the_run() -> None:
    rig = Rig(READ, text("one"), asks(call("n2", "read_note", {"id": 1})), text("two"), dedupe=True)
    rig.run()
    rig.notes[1] = "changed meanwhile"
    rig.follow_up("And now?")
    rig.run()
    assert rig.told("n2") == "changed meanwhile"


# --- approve and reject ---------------------------------------------------------------------------


def waiting(*answers: Any) -> Rig:
    rig = Rig(MAIL, *(answers or [text("ok")]))
    rig.run()
    assert rig.waiting() == ["m1"]
    return rig


def test_nothing_happens_until_somebody_decides() -> None:
    rig = waiting()
    for _ in range(2):
        rig.run()
        assert rig.waiting() == ["m1"]
    assert (rig.effects, rig.requests) == ([], 1)


def test_what_is_approved_runs_once_however_often_it_is_approved() -> None:
    rig = waiting()
    rig.approve("m1")
    rig.approve("m1")
    rig.run()
    assert rig.effects == ["send_mail:m1"]
    assert rig.told("m1") == "sent: hello"
    assert rig.state.status == "completed"


def test_what_is_rejected_does_not_run_and_the_model_reads_why() -> None:
    rig = waiting()
    rig.reject("m1", "wrong customer")
    rig.run()
    assert rig.effects == []
    words = "The user rejected this call: it was not executed. Reason: wrong customer"
    assert rig.told("m1") == words
    assert rig.state.status == "completed"
    (result,) = rig.of_type("tool_result")
    assert (result["ok"], result["executed"]) == (False, False)


def test_what_is_approved_cannot_be_rejected_after_all_nor_the_other_way_round() -> None:
    rig = waiting()
    rig.approve("m1")
    with pytest.raises(ValueError, match="call m1 has been approved already"):
        rig.reject("m1")
    rig = waiting()
    rig.reject("m1")
    with pytest.raises(ValueError, match="call m1 has been rejected already"):
        rig.approve("m1")


@pytest.mark.parametrize("decide", [approve, reject])
def test_a_call_that_does_not_wait_cannot_be_decided(decide: Callable[..., None]) -> None:
    rig = waiting()
    with pytest.raises(ValueError, match=r"no call x9 waits for a decision; waiting: \['m1'\]"):
        decide(rig.state, "x9")
    with pytest.raises(ValueError, match="waiting: none"):
        decide(new_run("", "x"), "m1")
    rig.approve("m1")
    rig.run()
    with pytest.raises(ValueError, match="waiting: none"):
        decide(rig.state, "m1")


def test_an_approval_is_of_one_call_only() -> None:
    """The same wish again asks again."""
    again = asks(call("m2", "send_mail", {"text": "hello"}))
    rig = waiting(again, text("ok"))
    rig.approve("m1")
    rig.run()
    assert rig.waiting() == ["m2"]
    assert rig.effects == ["send_mail:m1"]


def test_the_calls_that_wait_are_listed_with_what_they_would_do() -> None:
    two = asks(call("m1", "send_mail", {"text": "a"}), call("m2", "send_mail", {"text": "b"}))
    rig = Rig(two, text("ok"))
    rig.run()
    expected = [
        {"call_id": "m1", "tool_name": "send_mail", "args": {"text": "a"}},
        {"call_id": "m2", "tool_name": "send_mail", "args": {"text": "b"}},
    ]
    assert waiting_calls(rig.state) == expected
    assert rig.state.interruption == {"type": "approval", **expected[0], "calls": expected}
    asked = [(event["callId"], event["args"]) for event in rig.of_type("approval_required")]
    assert asked == [("m1", '{"text":"a"}'), ("m2", '{"text":"b"}')]


def test_approval_may_depend_on_the_arguments() -> None:
    def external(args: dict[str, Any]) -> bool:
        return "@" in str(args["to"])

    to = {"type": "object", "properties": {"to": {}}, "required": ["to"]}
    post = tool("post", nothing, to, needs_approval=external)
    calls = asks(call("p1", "post", {"to": "me"}), call("p2", "post", {"to": "a@b"}))
    rig = Rig(calls, text("ok"), tools=[post])
    rig.run()
    assert rig.effects == ["post:p1"]
    assert rig.waiting() == ["p2"]


# --- a run behind a tool --------------------------------------------------------------------------

ASK = asks(call("p1", "ask_child", {"task": "Read note 1."}))


def test_a_child_run_answers_its_parent() -> None:
    rig = Rig(ASK, text("The note says old."))
    child = rig.add_child("ask_child", READ, text("It says old."))
    rig.run()
    assert rig.told("p1") == "It says old."
    assert rig.state.output == "The note says old."
    first = journal_of(child)[0].request["messages"]
    assert [m["content"] for m in first] == ["A child.", "Read note 1."]
    # The parent's transcript holds the child's answer and nothing of its work.
    assert len(rig.state.messages) == 5


def test_the_parent_pays_and_each_counts_its_own_turns() -> None:
    rig = Rig(ASK, text("ok"))
    child = rig.add_child("ask_child", READ, text("It says old."))
    rig.run()
    inner = rig.state.children["p1"]
    assert (rig.state.turns, inner.turns) == (2, 2)
    assert len(journal_of(child)) == 2
    own = [event for event in rig.of_type("turn") if event["runId"] == "rig"]
    assert rig.state.prompt_tokens == inner.prompt_tokens + sum(e["prompt_tokens"] for e in own)
    own_cost = sum(cost(event) for event in own)
    assert rig.state.cost_usd == pytest.approx(own_cost + inner.cost_usd, abs=1e-9)
    assert inner.cost_usd > 0


def test_a_childs_events_say_whose_they_are() -> None:
    rig = Rig(ASK, text("ok"))
    rig.add_child("ask_child", READ, text("It says old."))
    rig.run()
    inner = [event for event in rig.events if event["runId"] == "rig.p1"]
    assert {event["parentRunId"] for event in inner} == {"rig"}
    assert [event["type"] for event in inner] == [
        "turn",
        "tool_start",
        "tool_result",
        "turn",
        "run_stopped",
    ]
    assert not any("parentRunId" in event for event in rig.events if event["runId"] == "rig")


def test_a_childs_budget_is_at_most_what_the_parent_has_left() -> None:
    rig = Rig(ASK, text("never asked"), limits=Limits(max_budget_usd=0.002))
    rig.add_child("ask_child", *FOREVER, limits=Limits(max_turns=50, max_budget_usd=1.0))
    rig.run()
    assert rig.state.status == "budget_exceeded"
    inner = rig.state.children["p1"]
    assert inner.status == "budget_exceeded"
    assert 0 < inner.turns < 50
    assert rig.requests == 1


def test_a_child_that_fails_is_told_in_words() -> None:
    rig = Rig(ASK, text("ok"))
    rig.add_child("ask_child", http_error(401))
    rig.run()
    assert rig.state.status == "completed"
    assert rig.told("p1") == (
        "The run stopped without an answer: failed after 0 turns ($0.000000): "
        "HTTP 401: Incorrect API key provided."
    )


def test_a_child_has_6_turns_and_5_cents_unless_told_otherwise() -> None:
    rig = Rig(ASK, text("ok"))
    rig.add_child("ask_child", *FOREVER)
    rig.run()
    assert rig.told("p1").startswith(
        "The run stopped without an answer: max_turns_exceeded after 6"
    )
    parameter = inspect.signature(run_as_tool).parameters["limits"]
    assert parameter.default is None


def test_the_child_is_read_only_when_all_its_tools_are() -> None:
    tools = {one.name: one for one in Rig().tools}
    for names, read_only in ((["read_note"], True), (["read_note", "add_note"], False)):
        child = run_as_tool("c", "", "", [tools[name] for name in names], client_of())
        assert (child.read_only, child.safe_to_repeat) == (read_only, True)


def test_a_waiting_call_of_a_child_is_named_by_its_path_or_where_clear_its_end() -> None:
    for name in ("p1/m1", "m1"):
        rig = Rig(ASK, text("ok"))
        rig.add_child("ask_child", MAIL, text("Sent."))
        rig.run()
        assert rig.waiting() == ["p1/m1"]
        approve(rig.state, name)
        rig.run()
        assert rig.effects.count("send_mail:m1") == 1
        assert rig.told("p1") == "Sent."


def test_the_parents_stop_stops_the_child() -> None:
    rig = Rig(ASK, text("ok"))
    rig.add_child("ask_child", *FOREVER, limits=Limits(max_turns=50))

    def stop_in_the_child(event: dict[str, Any]) -> None:
        rig.note_event(event)
        if event["runId"] == "rig.p1" and event["type"] == "turn":
            rig.stop("enough")

    rig.run(trace=stop_in_the_child)
    assert rig.state.interruption == {"type": "cancelled", "reason": "enough"}
    assert rig.state.children["p1"].interruption == {"type": "cancelled", "reason": "enough"}
    assert rig.state.children["p1"].turns == 1


# --- streaming ------------------------------------------------------------------------------------


def test_the_text_comes_in_pieces_and_the_state_is_the_same() -> None:
    pieces: list[str] = []
    streamed, whole = Rig(READ, text("One two three.")), Rig(READ, text("One two three."))
    streamed.run(on_delta=pieces.append)
    whole.run()
    assert pieces == ["One", " two", " three."]
    assert asdict(streamed.state) == asdict(whole.state)
    assert [bool(e.request.get("stream")) for e in streamed.exchanges] == [True, True]
    assert [bool(e.request.get("stream")) for e in whole.exchanges] == [False, False]


def test_a_retry_begins_the_text_again() -> None:
    pieces: list[str] = []
    rig = Rig(http_error(500, times=1))
    rig.run(on_delta=pieces.append)
    assert pieces == ["", "done"]


# --- progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_thread", [False, True])
def test_progress_reaches_the_reader_and_the_trace_in_the_loops_thread(in_thread: bool) -> None:
    threads: list[threading.Thread] = []
    labels: list[str] = []

    def on_progress(label: str) -> None:
        labels.append(label)
        threads.append(threading.current_thread())

    def plain(args: dict[str, Any], ctx: ToolContext) -> str:
        for step in range(3):
            ctx.progress(f"step {step}")
        return "done"

    async def coroutine(args: dict[str, Any], ctx: ToolContext) -> str:
        return plain(args, ctx)

    works = tool("works", plain if in_thread else coroutine)
    rig = Rig(asks(call("w1", "works")), text("ok"), tools=[works])
    rig.run(on_progress=on_progress)
    assert labels == ["step 0", "step 1", "step 2"]
    assert set(threads) == {threading.main_thread()}
    kinds = [event["type"] for event in rig.events]
    expected = ["turn", "tool_start", *["tool_progress"] * 3, "tool_result", "turn"]
    assert kinds == [*expected, "run_stopped"]
    steps = rig.of_type("tool_progress")
    assert [(e["toolName"], e["callId"], e["label"]) for e in steps] == [
        ("works", "w1", label) for label in labels
    ]


def test_a_label_of_any_kind_is_text() -> None:
    labels: list[str] = []

    async def works(args: dict[str, Any], ctx: ToolContext) -> str:
        ctx.progress(7)  # type: ignore[arg-type]
        ctx.progress("half \ud83d and \x1b[31mred")
        return ""

    rig = Rig(asks(call("w1", "works")), text("ok"), tools=[tool("works", works)])
    rig.run(on_progress=labels.append)
    assert labels == ["7", "half \ufffd and [31mred"]


# --- the trace ------------------------------------------------------------------------------------


def test_a_trace_file_is_appended_to_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.jsonl"
    for name in ("one", "two"):
        go(run(new_run("", "Hello?", name), [], client_of(text("Hé.")), trace=path))
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(line["runId"], line["type"]) for line in lines] == [
        ("one", "turn"),
        ("one", "run_stopped"),
        ("two", "turn"),
        ("two", "run_stopped"),
    ]
    for line in lines:
        assert datetime.fromisoformat(line["ts"]).utcoffset() == timedelta(0)


def test_a_trace_can_be_a_function_and_gets_the_same() -> None:
    events: list[dict[str, Any]] = []
    go(run(new_run("", "Hello?", "one"), [], client_of(text("Hello.")), trace=events.append))
    turn, stopped = events
    assert {key: turn[key] for key in ("runId", "type", "turn", "finish", "costBasis")} == {
        "runId": "one",
        "type": "turn",
        "turn": 1,
        "finish": "stop",
        "costBasis": "exact",
    }
    assert turn["costUsd"] == stopped["costUsd"] == cost(turn)
    assert (stopped["status"], stopped["reason"], stopped["turns"]) == ("completed", "answered", 1)


# --- on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", exits())
def test_a_state_reads_back_equal_after_every_exit(why: str, tmp_path: Path) -> None:
    rig = exits()[why]
    rig.run()
    path = save(rig.state, tmp_path)
    assert path == tmp_path / "rig.json"
    assert load(tmp_path, "rig") == rig.state
    text_of_it = json.dumps(asdict(rig.state), allow_nan=False)
    assert json.loads(text_of_it) == asdict(rig.state)


def test_a_state_with_children_reads_back_equal(tmp_path: Path) -> None:
    rig = Rig(ASK, text("ok"))
    rig.add_child("ask_child", MAIL)
    rig.run()
    save(rig.state, tmp_path)
    loaded = load(tmp_path, "rig")
    assert loaded == rig.state
    assert isinstance(loaded.children["p1"], RunState)


def test_a_store_is_written_as_the_run_goes(tmp_path: Path) -> None:
    on_disk: list[RunState] = []

    async def looks(args: dict[str, Any], ctx: ToolContext) -> str:
        on_disk.append(load(tmp_path, "rig"))
        return ""

    rig = Rig(asks(call("s1", "looks")), text("ok"), tools=[tool("looks", looks)], store=tmp_path)
    rig.run()
    (before,) = on_disk
    assert before.turns == 1
    assert before.started == ["s1"]  # it is known that it was started before it was
    assert [c["id"] for c in pending(before)] == ["s1"]
    assert load(tmp_path, "rig") == rig.state


def test_a_missing_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunStoreError, match="no saved run monday in"):
        load(tmp_path, "monday")


def test_an_older_copy_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    rig = Rig(MAIL, text("ok"), store=tmp_path)
    rig.run()
    old = load(tmp_path, "rig")
    rig.reject("m1")
    rig.run()
    newer = (tmp_path / "rig.json").read_text("utf-8")
    for attempt in (lambda: save(old, tmp_path), lambda: go(resumed(old, rig, tmp_path))):
        with pytest.raises(RunBusyError, match="newer than this copy; nothing was changed"):
            attempt()
    assert (tmp_path / "rig.json").read_text("utf-8") == newer


async def resumed(state: RunState, rig: Rig, store: Path) -> RunState:
    return await run(state, rig.tools, rig.client, store=store)


def test_an_approval_outlives_the_process(tmp_path: Path) -> None:
    rig = waiting()
    rig.store = tmp_path
    rig.approve("m1")
    rig.reload()
    rig.run()
    assert rig.effects == ["send_mail:m1"]


# --- money ----------------------------------------------------------------------------------------


def test_the_last_turn_may_overshoot_and_no_other_is_begun() -> None:
    rig = Rig(*FOREVER, limits=Limits(max_turns=None, max_budget_usd=0.001))
    rig.run()
    *before, last = [event["costUsd"] for event in rig.of_type("turn")]
    assert before[-1] < 0.001 <= last
    assert rig.state.cost_usd == last
    assert rig.requests == len(before) + 1


def test_a_client_without_a_price_costs_unknown_and_runs_without_a_budget() -> None:
    rig = Rig(text("ok"), client=client_of(text("ok"), price=None), priced=False)
    rig.run()
    assert (rig.state.status, rig.state.cost_basis) == ("completed", "unknown")


def test_the_time_of_a_turn_and_of_a_tool_is_in_the_trace() -> None:
    began = time.perf_counter()
    rig = Rig(READ, text("ok"))
    rig.run()
    longest = (time.perf_counter() - began) * 1000 + 1
    for event in [*rig.of_type("turn"), *rig.of_type("tool_result")]:
        assert isinstance(event["ms"], int)
        assert 0 <= event["ms"] <= longest
