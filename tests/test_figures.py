"""Every figure of ``figures.json``, measured: to the last token and to the millionth of a dollar.

Two measurements must agree: what the harness adds up from the provider's ``usage``, and the
counting rule applied here, with tiktoken itself, to the requests that the provider received.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from catalogue import catalogue
from chat_client import PRICES
from harness import Limits, RunState, cost, new_run, run
from scripted_provider import encoding
from tests.support import FIGURES, ROOT, counted, go
from workbook import SYSTEM, TASK, client_for

ROWS: dict[str, Any] = {row["id"]: row for row in FIGURES["rows"]}

POLICIES: dict[str, dict[str, Any]] = {
    "tool errors are fatal": {"tool_errors_are_fatal": True},
    "tool error text is 'Error: the tool failed.'": {
        "tool_error_text": lambda error: "Error: the tool failed."
    },
    "tool error text is 'Error: ' + message": {"tool_error_text": lambda error: f"Error: {error}"},
    "every tool error goes back as data (the floor, before permanent errors stop the run)": {},
}


@dataclass
class Measured:
    state: RunState
    events: list[dict[str, Any]]
    tool_runs: list[str]
    requests: list[dict[str, Any]]

    def turns(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == "turn"]


@functools.cache
def measured(row_id: str) -> Measured:
    """The run that a row describes. A row without a turn cap has none: its budget stops it."""
    inputs = ROWS[row_id]["inputs"]
    result = Measured(new_run(SYSTEM, TASK), [], [], [])
    # A path outside is an ordinary error in the floor, and a permanent one in the harness.
    floor = "every tool error" in inputs.get("policy", "")
    tools = catalogue(forbidden=PermissionError) if floor else catalogue()
    client = client_for(inputs["script"])
    limits = Limits(inputs.get("max_turns"), inputs.get("max_budget_usd"))
    go(
        run(
            result.state,
            counted(tools, result.tool_runs),
            client,
            limits=limits,
            trace=result.events.append,
            **POLICIES[inputs["policy"]] if "policy" in inputs else {},
        )
    )
    result.requests = [exchange.request for exchange in client.transport.journal]
    return result


def tokens(value: Any) -> int:
    """The counting rule of figures.json, with nothing of the provider's but the vocabulary."""
    text = value if isinstance(value, str) else json.dumps(value, **JSON_STRINGIFY)
    encoding()  # tells tiktoken where the vocabulary lies
    return len(tiktoken.get_encoding("o200k_base").encode(text, disallowed_special=()))


JSON_STRINGIFY: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}


# --- the inputs -----------------------------------------------------------------------------------


def test_the_inputs_are_the_ones_that_the_figures_were_made_with() -> None:
    inputs = FIGURES["inputs"]
    assert inputs["system"] == SYSTEM
    assert inputs["task"] == TASK
    specs = [tool.spec for tool in catalogue()]
    # As text: the order of the keys is part of what is counted.
    assert json.dumps(specs) == json.dumps(inputs["tools"])


def test_the_book_price_is_the_one_of_the_figures() -> None:
    assert PRICES["book"] == FIGURES["prices_usd_per_million"]
    million = {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000}
    assert cost(million) == sum(FIGURES["prices_usd_per_million"].values())


def test_every_policy_of_the_rows_is_known_here() -> None:
    named = {row["inputs"]["policy"] for row in ROWS.values() if "policy" in row["inputs"]}
    assert named == set(POLICIES)


# --- the rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_id", ROWS)
def test_row(row_id: str) -> None:
    expect = ROWS[row_id]["expect"]
    result = measured(row_id)
    state = result.state
    assert {
        "status": state.status,
        "turns": state.turns,
        "tool_runs": len(result.tool_runs),
        "tin": state.prompt_tokens,
        "tout": state.completion_tokens,
        "answer": state.output,
    } == {key: expect[key] for key in expect if key not in ("cost", "per_turn")}
    assert state.cost_usd == pytest.approx(expect["cost"], rel=0, abs=1e-9)
    assert state.cost_basis == "exact"


@pytest.mark.parametrize(
    "row_id", [row_id for row_id in ROWS if "per_turn" in ROWS[row_id]["expect"]]
)
def test_prompt_tokens_of_each_turn(row_id: str) -> None:
    measured_turns = [turn["prompt_tokens"] for turn in measured(row_id).turns()]
    assert measured_turns == ROWS[row_id]["expect"]["per_turn"]


@pytest.mark.parametrize("row_id", ROWS)
def test_the_first_prompt_is_the_same_in_every_row(row_id: str) -> None:
    assert measured(row_id).turns()[0]["prompt_tokens"] == FIGURES["first_prompt_tokens"]


@pytest.mark.parametrize("row_id", [row_id for row_id in ROWS if row_id != "runaway-cap-100"])
def test_the_rule_applied_here_gives_the_same_counts(row_id: str) -> None:
    """The longest row is left out: the plain rule counts its whole transcript a hundred times."""
    result = measured(row_id)
    answers = [message for message in result.state.messages if message["role"] == "assistant"]
    assert len(result.requests) == len(answers) == result.state.turns
    for turn, request, answer in zip(result.turns(), result.requests, answers, strict=True):
        assert turn["prompt_tokens"] == tokens(request["messages"]) + tokens(request["tools"])
        completion = tokens(answer["content"] or "") + tokens(answer.get("tool_calls") or '""')
        assert turn["completion_tokens"] == completion
        assert turn["total_tokens"] == turn["prompt_tokens"] + turn["completion_tokens"]


@pytest.mark.parametrize("row_id", ROWS)
def test_the_cost_so_far_is_the_sum_over_the_turns(row_id: str) -> None:
    price, so_far = FIGURES["prices_usd_per_million"], 0.0
    for turn in measured(row_id).turns():
        so_far += turn["prompt_tokens"] * price["in"] / 1e6
        so_far += turn["completion_tokens"] * price["out"] / 1e6
        assert turn["costUsd"] == pytest.approx(so_far, rel=0, abs=1e-9)


@pytest.mark.parametrize("row_id", [row_id for row_id in ROWS if "budget" in row_id])
def test_a_budget_is_overshot_by_at_most_one_turn(row_id: str) -> None:
    *before, last = [turn["costUsd"] for turn in measured(row_id).turns()]
    budget = ROWS[row_id]["inputs"]["max_budget_usd"]
    assert before[-1] < budget <= last


# --- the ratios -----------------------------------------------------------------------------------


def test_published_ratios() -> None:
    published = FIGURES["published_ratios"]

    def ratio(of: str, over: str, attribute: str = "cost_usd") -> float:
        above, below = measured(of).state, measured(over).state
        return round(float(getattr(above, attribute) / getattr(below, attribute)), 1)

    assert {
        "cost of cap 100 over cap 50": ratio("runaway-cap-100", "runaway-cap-50"),
        "input tokens of cap 100 over cap 50": ratio(
            "runaway-cap-100", "runaway-cap-50", "prompt_tokens"
        ),
        "recover-told over recover-fatal": ratio("recover-told", "recover-fatal"),
        "forbidden over recover-told": ratio("forbidden", "recover-told"),
        "repeat over once": _more("repeat", "once"),
    } == published


def _more(of: str, over: str) -> str:
    above, below = measured(of).state.cost_usd, measured(over).state.cost_usd
    return f"+${above - below:.6f}, +{above / below - 1:.0%}".replace("%", " %")


# --- the trace ------------------------------------------------------------------------------------


def test_trace_n1_line_by_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    go(run(new_run(SYSTEM, TASK, "n1"), catalogue(), client_for("destructive"), trace=trace))
    lines = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    assert [line["runId"] for line in lines] == ["n1"] * len(lines)
    for line, expected in zip(lines, FIGURES["trace_n1"], strict=True):
        # What the figures name, in their order; a line may say more (the time, the call's id).
        assert [(key, line[key]) for key in line if key in expected] == list(expected.items())


# --- resume ---------------------------------------------------------------------------------------


def test_a_killed_run_is_finished_by_a_second_process(tmp_path: Path) -> None:
    resume = FIGURES["resume"]
    command = [sys.executable, "-m", "tests.resume_process"]
    with subprocess.Popen(
        [*command, "first", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "third request\n"  # two turns are over and paid for
        killed.kill()
    assert killed.returncode == (1 if os.name == "nt" else -signal.SIGKILL)
    second = subprocess.run(
        [*command, "second", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = json.loads(second.stdout)
    for stage in ("restored", "finished"):
        assert {key: told[stage][key] for key in resume[stage]} == resume[stage]
    assert told["finished"]["output"] == ROWS["plan"]["expect"]["answer"]
    runs = (tmp_path / "tools").read_text("utf-8").splitlines()
    assert runs == resume["tool_runs_across_both"]


# --- the slow tool --------------------------------------------------------------------------------


def test_the_scan_takes_the_published_steps() -> None:
    labels: list[str] = []
    state = new_run(SYSTEM, TASK)
    go(run(state, catalogue(step_s=0), client_for("scan"), on_progress=labels.append))
    steps = [label.replace(",", "") for label in labels]
    assert steps == [f"scanned {done} of 1200 files" for done in range(200, 1201, 200)]
    assert FIGURES["stop"]["progress"] == "6 steps of 500 ms, 200 of 1200 files each"
