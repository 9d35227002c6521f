"""The loops of chapters 01 to 04, measured against the figures and against the harness."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict
from typing import Any

import pytest

from catalogue import catalogue
from harness import AbortSignal, Limits, new_run, run
from loops import bare_loop, capped_loop, check_after, five_exits, priced_loop
from scripted_provider import Fault, http_error
from tests.support import FIGURES, counted
from workbook import OPENING, SYSTEM, TASK, Meter, client_for

ROWS: dict[str, Any] = {row["id"]: row for row in FIGURES["rows"]}
CAPS = [row for row in ROWS if row.startswith("runaway-cap")]
BUDGETS = [row for row in ROWS if row.startswith("runaway-budget")]


def assert_measured(meter: Meter, row_id: str) -> None:
    expected = ROWS[row_id]["expect"]
    assert (meter.turns, meter.prompt_tokens, meter.completion_tokens) == (
        expected["turns"],
        expected["tin"],
        expected["tout"],
    )
    assert meter.cost_usd == pytest.approx(expected["cost"], abs=1e-9)


def test_the_bare_loop_answers_the_plan() -> None:
    meter, messages, runs = Meter(client_for("plan")), [*OPENING], list[str]()
    answer = asyncio.run(bare_loop(meter, counted(catalogue(), runs), messages))
    expected = ROWS["plan"]["expect"]
    assert answer == expected["answer"]
    assert [usage["prompt_tokens"] for usage in meter.usages] == expected["per_turn"]
    assert len(runs) == expected["tool_runs"]
    assert [message["role"] for message in messages[2:]] == [
        *("assistant", "tool") * 2,
        "assistant",
    ]
    assert_measured(meter, "plan")


@pytest.mark.parametrize("row_id", CAPS)
def test_a_cap_stops_a_runaway_at_its_figure(row_id: str) -> None:
    meter, runs = Meter(client_for("runaway")), list[str]()
    cap = ROWS[row_id]["inputs"]["max_turns"]
    assert asyncio.run(capped_loop(meter, counted(catalogue(), runs), [*OPENING], cap)) == ""
    assert_measured(meter, row_id)
    # This loop settles the last turn's call before it looks at its cap; the harness after.
    assert len(runs) == ROWS[row_id]["expect"]["tool_runs"] + 1


@pytest.mark.parametrize("row_id", BUDGETS)
def test_a_budget_stops_a_runaway_at_its_figure(row_id: str) -> None:
    meter = Meter(client_for("runaway"))
    budget = ROWS[row_id]["inputs"]["max_budget_usd"]
    assert asyncio.run(priced_loop(meter, catalogue(), [*OPENING], math.inf, budget)) == ""
    assert_measured(meter, row_id)


def test_checking_after_the_turn_buys_one_more_turn_at_every_start() -> None:
    before, after = Meter(client_for("runaway")), Meter(client_for("runaway"))
    for loop, meter in ((priced_loop, before), (check_after, after)):
        messages = [*OPENING]
        for _ in range(3):
            asyncio.run(loop(meter, catalogue(), messages, math.inf, 0.01, meter.cost_usd))
    assert (before.turns, after.turns) == (9, 11)


@pytest.mark.parametrize("row_id", ["plan", *CAPS, *BUDGETS])
def test_five_exits_leaves_the_state_that_the_harness_leaves(row_id: str) -> None:
    inputs = ROWS[row_id]["inputs"]
    turns = inputs.get("max_turns", math.inf)
    usd = inputs.get("max_budget_usd", math.inf)
    assert_same_exit(inputs["script"], turns, usd, ROWS[row_id]["expect"]["status"])


def test_five_exits_fails_as_the_harness_does() -> None:
    assert_same_exit("plan", 20, math.inf, "failed", faults={1: http_error(401)})


def test_five_exits_is_interrupted_as_the_harness_is() -> None:
    assert_same_exit("plan", 20, math.inf, "interrupted", reason="enough")


def assert_same_exit(
    script: str,
    turns: float,
    usd: float,
    status: str,
    *,
    faults: dict[int, Fault] | None = None,
    reason: str | None = None,
) -> None:
    signal = AbortSignal()
    if reason is not None:
        signal.abort(reason)
    tools, client = catalogue(), client_for(script, faults=faults)
    loop, harness = (new_run(SYSTEM, TASK, "same") for _ in range(2))
    limits = Limits(None if turns == math.inf else int(turns), None if usd == math.inf else usd)
    asyncio.run(five_exits(loop, tools, client, signal, turns, usd))
    asyncio.run(run(harness, tools, client, limits=limits, signal=signal))
    assert loop.status == status
    of_loop, of_harness = asdict(loop), asdict(harness)
    assert of_loop.pop("cost_usd") == pytest.approx(of_harness.pop("cost_usd"), abs=1e-9)
    # What the harness keeps beyond this: chapters 05 to 13.
    for key in ("prompt_tokens", "completion_tokens", "started"):
        del of_loop[key], of_harness[key]
    assert of_loop == of_harness
