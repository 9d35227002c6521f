"""Everything that could go on for ever has an end: tools, requests, retries, turns, time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from chat_client import ChatClient, price_for
from harness import Limits, Tool, ToolContext, deadline, new_run, pending, run, turn_cap
from scripted_provider import Fault, asks, call, http_error, slow, text, transport
from tests.rig import Rig, client_of, tool

READS = [asks(call(f"n{n}", "read_note", {"id": 1})) for n in range(30)]

# --- one tool ------------------------------------------------------------------------------------


async def sleeps(args: dict[str, Any], ctx: ToolContext) -> str:
    await asyncio.sleep(30)
    return "never"


def waits(args: dict[str, Any], ctx: ToolContext) -> str:
    """In a thread; looks at the signal, and is therefore done when it is told to be."""
    if ctx.signal.wait_blocking(30):
        raise TimeoutError(f"told: {ctx.signal.reason}")
    return "never"


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("function", [sleeps, waits], ids=["async", "thread"])
def test_a_tool_out_of_time_is_stopped_and_the_run_goes_on(
    function: Callable[..., Any], read_only: bool
) -> None:
    slow_one = tool("slow", function, timeout_s=0.05, read_only=read_only)
    rig = Rig(asks(call("s1", "slow"), call("n1", "read_note", {"id": 1})), tools=[slow_one])
    rig.run()
    assert rig.state.status == "completed"
    assert rig.told("s1").startswith("Error: no result after 0.05 s; it was stopped")
    assert ("may have had a partial effect" in rig.told("s1")) == (not read_only)
    assert rig.told("n1") == "old"


def test_a_tool_that_ignores_its_time_limit_is_left_behind() -> None:
    let_go = threading.Event()
    stubborn = tool("stubborn", lambda args, ctx: let_go.wait(10), timeout_s=0.05)
    rig = Rig(asks(call("s1", "stubborn")), text("ok"), tools=[stubborn])
    rig.run()
    let_go.set()
    assert rig.state.status == "completed"
    assert "may still be running" in rig.told("s1")


def test_a_result_that_comes_while_the_tool_is_being_stopped_is_its_result() -> None:
    async def tidy(args: dict[str, Any], ctx: ToolContext) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "as far as I came"
        return "never"

    rig = Rig(asks(call("t1", "tidy")), tools=[tool("tidy", tidy, timeout_s=0.05)])
    rig.run()
    assert rig.told("t1") == "as far as I came"


def test_a_time_limit_does_not_stop_the_run_nor_the_next_tool() -> None:
    seen: list[bool] = []

    def looks(args: dict[str, Any], ctx: ToolContext) -> str:
        seen.append(ctx.signal.aborted)
        return "looked"

    tools = [tool("slow", sleeps, timeout_s=0.05), tool("looks", looks)]
    rig = Rig(asks(call("s1", "slow"), call("l1", "looks")), tools=tools)
    rig.run()
    assert seen == [False]
    assert rig.state.status == "completed"


def test_the_time_of_a_child_run_can_be_limited_too() -> None:
    rig = Rig(asks(call("p1", "ask_child")), text("ok"))
    client = client_of(slow(30))
    rig.clients.append(client)

    async def ask_child(args: dict[str, Any], ctx: ToolContext) -> str:
        child = await run(new_run("", "Do it."), [], client, parent=ctx)
        return f"{child.status}: {child.interruption}"

    rig.tools.append(rig.counted(tool("ask_child", ask_child, timeout_s=0.1)))
    rig.run()
    assert rig.state.status == "completed"
    assert rig.told("p1").startswith("Error: no result after 0.1 s; it was stopped")
    assert rig.of_type("run_stopped")[0]["reason"] == "cancelled"  # the child's


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_s of t must be above 0 or None"):
        tool("t", sleeps, timeout_s=seconds)


# --- the time of a run ---------------------------------------------------------------------------


def test_a_deadline_is_looked_at_before_each_turn() -> None:
    now = [100.0]

    def takes_4_s(args: dict[str, Any], ctx: ToolContext) -> str:
        now[0] += 4
        return "done"

    asks_it = [asks(call(f"c{n}", "takes")) for n in range(9)]
    rig = Rig(*asks_it, tools=[tool("takes", takes_4_s)])
    rig.run(stop_when=[deadline(10, clock=lambda: now[0])])
    assert rig.state.interruption == {"type": "stop_condition", "name": "deadline"}
    assert now == [112.0]
    assert (rig.state.turns, rig.state.resumable) == (3, True)
    rig.run(stop_when=[deadline(10, clock=lambda: now[0])])
    assert rig.state.turns == 6


@pytest.mark.parametrize("levels", [1, 2])
def test_a_deadline_holds_for_the_runs_behind_its_tools_too(levels: int) -> None:
    now = [100.0]

    def takes_4_s(args: dict[str, Any], ctx: ToolContext) -> str:
        now[0] += 4
        return "done"

    work = [asks(call(f"c{n}", "takes")) for n in range(5)]
    ask = asks(call("p1", "ask_child", {"task": "Work."}), call("r1", "read_note", {"number": 1}))
    rig = Rig(ask, text("ok"))
    within: list[Tool] = [tool("takes", takes_4_s)]
    answers: list[Any] = [*work, text("Worked.")]
    for _ in range(levels - 1):
        within = [rig.child("ask_child", *answers, tools=within)]
        answers = [asks(call("q1", "ask_child", {"task": "Work."})), text("It worked.")]
    rig.add_child("ask_child", *answers, tools=within)

    rig.run(stop_when=[deadline(10, clock=lambda: now[0])])
    condition = {"type": "stop_condition", "name": "deadline"}
    child = rig.state
    for key in ("p1", "q1")[:levels]:
        child = child.children[key]
        assert (child.status, child.interruption) == ("interrupted", condition)
    assert (rig.state.status, rig.state.interruption) == ("interrupted", condition)
    assert (child.turns, now) == (3, [112.0])
    # The child is paused, not answered for, and nothing begins after it.
    assert [one["id"] for one in pending(rig.state)] == ["p1", "r1"]

    rig.run()
    assert (rig.state.status, child.status, child.turns) == ("completed", "completed", 6)
    assert rig.told("p1") == ("Worked." if levels == 1 else "It worked.")


@pytest.mark.parametrize("seconds", [-1, float("nan"), "10"])
def test_a_deadline_that_cannot_be_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="deadline must be 0 or more"):
        deadline(seconds)


@pytest.mark.parametrize("turns", [-1, float("nan"), "10", None])
def test_a_cap_that_cannot_be_is_refused(turns: Any) -> None:
    with pytest.raises(ValueError, match="max_turns must be 0 or more"):
        turn_cap(turns)


def test_an_infinite_limit_is_no_limit() -> None:
    rig = Rig(*READS[:25])
    rig.run(limits=Limits(max_turns=float("inf"), max_budget_usd=float("inf")))  # type: ignore[arg-type]
    assert rig.state.status == "completed"


# --- one request ---------------------------------------------------------------------------------


def dripping(**options: Any) -> ChatClient:
    """A provider that sends a word every 20 ms, for ever longer than anybody waits."""
    words = text(" ".join(["word"] * 10_000))
    carrier = transport({"s": lambda turn, said: words}, chunk_delay_s=0.02)
    return ChatClient(
        "http://scripted/v1", "s", transport=carrier, price=price_for("book"), **options
    )


def test_a_body_that_drips_does_not_outlive_the_deadline() -> None:
    pieces: list[str] = []
    rig = Rig(client=dripping(deadline_s=1.0, timeout_s=10))
    rig.run(on_delta=pieces.append)
    assert (rig.state.status, rig.state.turns) == ("failed", 0)
    assert "no answer within 1 s" in (rig.state.error or "")
    assert 1 <= len(pieces) < 100


def test_the_deadline_holds_over_all_attempts_together() -> None:
    rig = Rig(client=client_of(slow(30), deadline_s=0.1, max_retries=100))
    rig.run()
    assert "no answer within 0.1 s" in (rig.state.error or "")
    assert rig.requests == 1


@pytest.mark.parametrize("retries", [0, 1, 4])
@pytest.mark.parametrize("fault", [http_error(500), http_error(429), Fault(drop=True)])
def test_retries_are_bounded(fault: Fault, retries: int) -> None:
    rig = Rig(client=client_of(fault, max_retries=retries))
    rig.run()
    assert (rig.state.status, rig.requests) == ("failed", retries + 1)


def test_a_wait_longer_than_the_deadline_is_not_begun() -> None:
    rig = Rig(client=client_of(http_error(429, retry_after=86_400), sleep=asyncio.sleep))
    rig.run()
    assert (rig.state.status, rig.requests) == ("failed", 1)
    assert "86400 s" in (rig.state.error or "")


# --- turns that lead nowhere ---------------------------------------------------------------------

BAD = [
    call("c1", "search_web"),
    call("c1", "add_note", "{{"),
    call("c1", "read_note", {"id": "one"}),
]


@pytest.mark.parametrize("one", BAD, ids=["unknown", "malformed", "misfit"])
def test_three_turns_in_a_row_of_nothing_but_bad_calls_end_the_run(one: Any) -> None:
    rig = Rig(*[asks(one)] * 9)
    rig.run(limits=Limits(max_turns=None))
    assert (rig.state.status, rig.requests) == ("failed", 3)
    assert (rig.state.error or "").startswith("3 turns in a row held no call that can be executed")


def test_the_count_goes_on_over_a_resume_and_ends_with_a_new_message() -> None:
    rig = Rig(*[asks(BAD[0])] * 9)
    rig.run(limits=Limits(max_turns=2))
    assert rig.state.invalid_turns == 2
    rig.run(limits=Limits(max_turns=9))
    assert (rig.state.status, rig.state.turns) == ("failed", 3)
    rig.follow_up("try something else")
    rig.run(limits=Limits(max_turns=9))
    assert (rig.state.status, rig.state.turns) == ("failed", 6)


def test_a_turn_with_one_good_call_is_not_a_lost_turn() -> None:
    mixed = asks(BAD[0], call("n1", "read_note", {"id": 1}))
    rig = Rig(*[mixed] * 5)
    assert rig.run().status == "completed"


def test_the_three_messages_are_distinct() -> None:
    rig = Rig(asks(*[{**one, "id": f"c{n}"} for n, one in enumerate(BAD)]))
    rig.run()
    said = [rig.told(f"c{n}") for n in range(3)]
    assert "there is no tool named" in said[0]
    assert "not valid JSON" in said[1]
    assert "do not fit" in said[2]
