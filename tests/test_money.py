"""Money: counted once, counted everywhere, never taken for nothing."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from chat_client import ChatClient, price_for
from harness import (
    Limits,
    RunState,
    Tool,
    ToolContext,
    budget,
    cost,
    follow_up,
    new_run,
    run,
)
from limits import MOST_TOKENS, bill_for
from scripted_provider import Fault, asks, call, changed, no_usage, text
from tests.rig import Rig, client_of, journal_of, tool

READS = [asks(call(f"n{n}", "read_note", {"id": 1})) for n in range(30)]


def usage(**counts: Any) -> Fault:
    return changed(lambda body: body.update(usage=counts))


def bill_of(answers: list[Any], **limits: Any) -> tuple[Rig, float]:
    rig = Rig(*answers, priced=False)
    rig.run(limits=Limits(**limits))
    return rig, rig.state.cost_usd


# --- counts that cannot be -----------------------------------------------------------------------

IMPOSSIBLE: list[Any] = [
    {},
    {"total_tokens": 12},
    {"prompt_tokens": 10},
    {"prompt_tokens": None, "completion_tokens": None},
    {"prompt_tokens": -5, "completion_tokens": 3},
    {"prompt_tokens": 5, "completion_tokens": -3},
    {"prompt_tokens": "5", "completion_tokens": "3"},
    {"prompt_tokens": 5.5, "completion_tokens": 3.5},
    {"prompt_tokens": True, "completion_tokens": False},
    {"prompt_tokens": [5], "completion_tokens": {}},
    {"prompt_tokens": 10**400, "completion_tokens": 1},
    {"prompt_tokens": MOST_TOKENS + 1, "completion_tokens": 1},
    [],
    "free",
    0,
]


@pytest.mark.parametrize("raw", IMPOSSIBLE, ids=lambda raw: json.dumps(raw)[:40])
def test_counts_that_cannot_be_are_estimated(raw: Any) -> None:
    rig = Rig(changed(lambda body: body.update(usage=raw)), priced=False)
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert (rig.state.status, rig.state.cost_basis) == ("completed", "estimated")
    assert rig.state.prompt_tokens > 0
    assert 0 < rig.state.cost_usd < 0.01


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_counts_that_are_no_numbers_are_estimated(literal: str) -> None:
    body = {
        "choices": [{"message": text("ok"), "finish_reason": "stop"}],
        "usage": {"prompt_tokens": "@", "completion_tokens": 3},
    }
    raw = json.dumps(body).replace('"@"', literal)
    rig = Rig(Fault(status=200, body=raw), priced=False)
    rig.run()
    assert (rig.state.status, rig.state.cost_basis) == ("completed", "estimated")
    assert math.isfinite(rig.state.cost_usd)


def test_an_estimate_is_rather_too_high_than_too_low() -> None:
    """A budget must rather stop too early than never."""
    script = [*READS[:5], text("A rather long answer of several words, as models give them.")]
    exact, _ = bill_of(script)
    guessed = Rig(*script, priced=False)
    for turn in range(6):
        carrier: Any = guessed.client.transport
        carrier.provider.faults[turn] = no_usage()
    guessed.run()
    assert guessed.state.cost_basis == "estimated"
    assert exact.state.prompt_tokens <= guessed.state.prompt_tokens
    assert exact.state.completion_tokens <= guessed.state.completion_tokens
    assert guessed.state.prompt_tokens < 3 * exact.state.prompt_tokens


def test_a_budget_holds_without_any_usage() -> None:
    client = client_of(*READS)
    carrier: Any = client.transport
    carrier.provider.faults.update({turn: no_usage() for turn in range(30)})
    rig = Rig(client=client, priced=False)
    rig.run(limits=Limits(max_turns=None, max_budget_usd=0.01))
    assert rig.state.status == "budget_exceeded"
    assert rig.state.turns < 20


@pytest.mark.parametrize("cached", [-1, None, "x", 10**9, True])
def test_cached_tokens_that_cannot_be_make_nothing_cheaper_than_free(cached: Any) -> None:
    counts = usage(
        prompt_tokens=100, completion_tokens=10, prompt_tokens_details={"cached_tokens": cached}
    )
    price = {"in": 10.0, "cached": 1.0, "out": 0.0}
    rig = Rig(client=client_of(counts, price=price), priced=False)
    rig.run()
    assert 100 / 1e6 <= rig.state.cost_usd <= 1000 / 1e6


@pytest.mark.parametrize(
    ("counts", "price", "usd"),
    [
        ({"prompt_tokens": 1_000_000, "completion_tokens": 0}, {"in": 2.0, "out": 12.0}, 2.0),
        ({"prompt_tokens": 0, "completion_tokens": 1_000_000}, {"in": 2.0, "out": 12.0}, 12.0),
        ({"prompt_tokens": 0, "completion_tokens": 0}, {"in": 2.0, "out": 12.0}, 0.0),
        (
            {"prompt_tokens": 10, "cached_tokens": 10, "completion_tokens": 0},
            {"in": 2.0, "out": 12.0, "cached": 0.5},
            5e-6,
        ),
        (
            {"prompt_tokens": 10, "cached_tokens": 10, "completion_tokens": 0},
            {"in": 2.0, "out": 12.0},  # no price of its own: cached input costs as much as fresh
            2e-5,
        ),
    ],
)
def test_the_price_of_an_answer(counts: Any, price: Any, usd: float) -> None:
    assert cost(counts, price) == pytest.approx(usd)


class Priced:
    """A client whose usage and price are whatever the test says."""

    def __init__(self, usage: Any, price: Any) -> None:
        self.usage, self.price = usage, price

    async def complete(self, *args: Any, **options: Any) -> Any:
        client = self

        class Reply:
            message = text("ok")
            finish_reason = "stop"
            refusal = None
            usage = client.usage
            price = client.price

        return Reply()


@pytest.mark.parametrize(
    "price",
    [
        None,
        {"in": float("nan"), "out": 1.0},
        {"in": -1.0, "out": 1.0},
        {"in": float("inf"), "out": 1.0},
        {"in": 1e308, "out": 1e308, "cached": 1e308},
    ],
)
def test_a_price_that_cannot_be_is_unknown(price: Any) -> None:
    counts = {"prompt_tokens": MOST_TOKENS, "completion_tokens": 5, "cached_tokens": 0}
    state = new_run("", "Do it.")
    asyncio.run(run(state, [], Priced(counts, price)))
    assert (state.status, state.cost_basis, state.cost_usd) == ("completed", "unknown", 0.0)
    bill = bill_for(counts, price, [], {})
    assert (bill.usd, bill.basis) == (0.0, "unknown")


# --- an unknown price and a budget ---------------------------------------------------------------

UNPRICED = "the client has no price for this model"


@pytest.mark.parametrize(
    "limits", [{"limits": Limits(max_budget_usd=9.0)}, {"stop_when": [budget(9.0)]}]
)
@pytest.mark.parametrize("answers", [[text("the answer")], READS])
def test_a_budget_without_a_price_fails_after_one_turn(limits: Any, answers: list[Any]) -> None:
    rig = Rig(client=client_of(*answers, price=None), priced=False)
    rig.run(**limits)
    assert (rig.state.status, rig.state.turns) == ("failed", 1)
    assert UNPRICED in (rig.state.error or "")
    assert "price=" in (rig.state.error or "")
    assert rig.state.output == ("the answer" if len(answers) == 1 else "")


def test_without_a_budget_it_runs_and_says_that_the_cost_is_not_known() -> None:
    rig = Rig(client=client_of(READS[0], price=None), priced=False)
    rig.run()
    assert (rig.state.status, rig.state.cost_basis) == ("completed", "unknown")
    assert rig.state.prompt_tokens > 0
    assert {event["costBasis"] for event in rig.of_type("turn")} == {"unknown"}


def test_what_an_unpriced_part_has_spent_is_not_nothing_later() -> None:
    """A budget given afterwards cannot hold it: that is said before anything is sent."""
    rig = Rig(client=client_of(*READS, price=None), priced=False)
    rig.run(limits=Limits(max_turns=2))
    rig.client = client_of(*READS)
    rig.clients.append(rig.client)
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert rig.state.status == "failed"
    assert UNPRICED in (rig.state.error or "")
    assert len(journal_of(rig.client)) == 0
    follow_up(rig.state, "without a budget, then")
    rig.client = client_of(*[text("done")] * 5)
    assert rig.run().status == "completed"


def test_a_child_without_a_price_fails_when_its_parent_has_a_budget() -> None:
    rig = Rig(asks(call("p1", "ask_child", {"task": "go"})), text("so it goes"), priced=False)
    child = client_of(text("answer"), price=None)
    rig.clients.append(child)

    async def ask_child(args: dict[str, Any], ctx: ToolContext) -> str:
        state = await run(new_run("", "Do it."), [], child, parent=ctx)
        return f"{state.status}: {state.error}"

    rig.tools.append(tool("ask_child", ask_child))
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert UNPRICED in rig.told("p1")
    assert rig.state.status == "failed"  # what was spent is not known here either
    assert rig.requests == 1


@pytest.mark.parametrize(
    "price",
    [
        {"in": -1.0, "out": 1.0},
        {"in": float("nan"), "out": 1.0},
        {"in": 1.0},
        {"in": 1.0, "out": 1.0, "cached": -0.1},
        {"in": 1.0, "out": float("inf")},
    ],
)
def test_the_client_refuses_a_price_that_cannot_be(price: Any) -> None:
    with pytest.raises(ValueError, match="price must be"):
        ChatClient("http://scripted/v1", "m", price=price)


def test_an_unknown_model_has_no_price_and_says_which_have() -> None:
    with pytest.raises(ValueError, match=r"no price for model 'gpt-9'; known: book, free"):
        price_for("gpt-9")


# --- limits that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize("usd", [-0.01, float("nan"), "1", None])
def test_a_budget_that_cannot_be_is_refused(usd: Any) -> None:
    with pytest.raises(ValueError, match="max_budget_usd must be 0 or more"):
        budget(usd)
    if usd is not None:
        with pytest.raises(ValueError, match="max_budget_usd must be 0 or more"):
            Limits(max_budget_usd=usd)


# --- children ------------------------------------------------------------------------------------


def costing(usd: float, message: Any) -> Fault:
    """An answer that costs so much at the book's price."""

    def change(body: dict[str, Any]) -> None:
        body["choices"][0]["message"] = message
        body["usage"] = {"prompt_tokens": round(usd * 500_000), "completion_tokens": 0}

    return changed(change)


def children_at_once(rig: Rig, number: int, turns: int, usd: float) -> Tool:
    """A tool that starts so many child runs together, each of which asks for turn after turn."""
    clients = [client_of(*[costing(usd, one) for one in READS[:turns]]) for _ in range(number)]
    rig.clients += clients

    async def ask_many(args: dict[str, Any], ctx: ToolContext) -> list[str]:
        runs = [
            run(new_run("", "Do it.", f"child-{n}"), rig.tools[:1], client, parent=ctx)
            for n, client in enumerate(clients)
        ]
        return [state.status for state in await asyncio.gather(*runs)]

    return tool("ask_many", ask_many)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_children_at_once_overshoot_by_one_turn_each_at_most(number: int) -> None:
    rig = Rig(costing(0.10, asks(call("p1", "ask_many"))), text("too much"))
    rig.tools.append(children_at_once(rig, number, turns=20, usd=0.10))
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert rig.state.status == "budget_exceeded"
    assert rig.requests == 1
    assert 1.0 <= rig.state.cost_usd < 1.0 + number * 0.10 + 1e-9
    assert json.loads(rig.told("p1")) == ["budget_exceeded"] * number


def test_children_at_once_that_stay_within_the_budget_are_all_counted() -> None:
    rig = Rig(costing(0.10, asks(call("p1", "ask_many"))), costing(0.10, text("fine")))
    rig.tools.append(children_at_once(rig, 3, turns=2, usd=0.05))
    rig.run(limits=Limits(max_budget_usd=1.0))
    assert rig.state.status == "completed"
    assert rig.state.cost_usd > 0.20 + 3 * 2 * 0.05  # the exact sum is checked with the invariants


def test_a_child_of_a_child_pays_into_every_purse() -> None:
    rig = Rig(costing(0.10, asks(call("p1", "ask_child", {"task": "go"}))), text("ok"))
    grandchild = rig.child("ask_grandchild", costing(0.30, text("deep")))
    asks_it = costing(0.20, asks(call("q1", "ask_grandchild", {"task": "go"})))
    child_limits = Limits(max_budget_usd=0.4)
    rig.add_child("ask_child", asks_it, text("never"), tools=[grandchild], limits=child_limits)
    rig.run(limits=Limits(max_budget_usd=9.0))
    child = rig.state.children["p1"]
    assert child.children["q1"].cost_usd == pytest.approx(0.30)
    assert child.cost_usd == pytest.approx(0.50)
    assert child.status == "budget_exceeded"
    assert "budget_exceeded" in rig.told("p1")
    assert rig.state.status == "completed"


def test_the_budget_holds_over_stops_and_resumes() -> None:
    rig = Rig(*[costing(0.10, one) for one in READS])
    for _ in range(5):
        rig.run(limits=Limits(max_turns=rig.state.turns + 3, max_budget_usd=1.0))
    assert rig.state.status == "budget_exceeded"
    assert rig.state.cost_usd == pytest.approx(1.0)
    assert rig.requests == 10


def test_sums_of_exact_prices_stay_exact() -> None:
    rig = Rig(*READS)
    rig.run(limits=Limits(max_turns=30))
    expected = (rig.state.prompt_tokens * 2 + rig.state.completion_tokens * 12) / 1e6
    assert rig.state.cost_usd == round(expected, 9)


def test_a_failed_attempt_costs_nothing() -> None:
    fault = Fault(status=500, body={"error": {"message": "x"}}, times=2)
    rig = Rig(fault)
    rig.run()
    once: RunState = Rig(text("done")).run()
    assert rig.requests == 3
    assert rig.state.cost_usd == once.cost_usd
