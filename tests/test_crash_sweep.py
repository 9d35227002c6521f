"""A process can die at any moment: nothing is lost that was saved, nothing is done twice.

Each scenario is run once undisturbed and then killed (SIGKILL) at every moment of it, in a process
of its own, and resumed in another one; see crash_child.py for what a moment is. At every one:

* the run that was killed and resumed ends like the one that was not, answer, turns and cost;
* each side effect has happened exactly once (the person who is asked looks outside first);
* the person is asked if and only if the file says that a call was started and not how it ended,
  in words that say so.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

import pytest

from harness import RunState
from tests import invariants
from tests.crash_child import SCENARIOS
from tests.support import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills need fork and SIGKILL")

# What is swept: a scenario, and how (see crash_child.py).
SWEEPS: dict[str, list[str]] = {
    **{name: [name] for name in SCENARIOS},
    "approved, by lines": ["approved", "--lines", "40"],
    "approved-child, by lines": ["approved-child", "--lines", "40"],
    "writes, killed twice": ["writes", "--twice", "40"],
    "approved-child, killed twice": ["approved-child", "--twice", "40"],
}
SAFE_TOOLS = {"list_files", "read_file", "scan_archive", "ask_child"}

Row = dict[str, Any]


@functools.cache
def swept(name: str) -> tuple[Row, list[Row]]:
    """The undisturbed run of a sweep, and one row for each kill."""
    scenario, *options = SWEEPS[name]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.crash_child", scenario, directory, *options]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    undisturbed, *rows = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(rows) >= 25, ended.stderr
    return undisturbed, rows


@pytest.mark.parametrize("name", SWEEPS)
def test_killed_at_every_moment(name: str) -> None:
    undisturbed, rows = swept(name)
    for row in rows:
        moment = undisturbed["moments"][row["kills"][0]]
        check_row(row, undisturbed, f"killed at {row['kills']}, first {moment!r}")


def check_row(row: Row, undisturbed: Row, where: str) -> None:
    *kills, last = row["ends"]
    # The first kill lies within the run; a later one may come after its end.
    assert kills[0] == -signal.SIGKILL, where
    assert set(kills) <= {0, -signal.SIGKILL}, where
    assert last == 0, where
    state, expected = RunState(**row["state"]), RunState(**undisturbed["state"])
    assert state.status == expected.status == "completed", where

    # Unknown is asked, never guessed; and nothing else is asked.
    unknown = [path for left in row["left"] if left for path in unknown_outcomes(left)]
    asked = [path for path, _ in row["asked"]]
    assert set(asked) == set(unknown), where
    assert all("outcome is unknown" in words for _, words in row["asked"]), where

    # At most once; and exactly once, since whoever was asked looked outside.
    assert Counter(row["effects"]) == Counter(undisturbed["effects"]), where
    assert set(Counter(row["effects"]).values()) <= {1}, where

    if not asked:  # a question leaves its mark on the transcript, so the next prompts differ
        for field in ("turns", "cost_usd", "prompt_tokens", "completion_tokens", "output"):
            assert getattr(state, field) == getattr(expected, field), (where, field)
        assert state.messages == expected.messages, where
    check_trace(row, len(kills))


def unknown_outcomes(left: dict[str, Any], prefix: str = "") -> list[str]:
    """By the file alone: calls that were started, have no result, and must not happen twice."""
    answered = {message.get("tool_call_id") for message in left["messages"]}
    calls = [call for message in left["messages"] for call in message.get("tool_calls") or ()]
    open_calls = [call for call in calls if call["id"] not in answered]
    unknown = [
        prefix + call["id"]
        for call in open_calls
        if call["id"] in left["started"]
        and call["id"] not in left["rejected"]
        and call["function"]["name"] not in SAFE_TOOLS
    ]
    for call in open_calls:
        if call["id"] in left["children"]:
            child = left["children"][call["id"]]
            unknown += unknown_outcomes(child, f"{prefix}{call['id']}/")
    return unknown


def check_trace(row: Row, kills: int) -> None:
    state = RunState(**row["state"])
    state.children = {key: RunState(**child) for key, child in row["state"]["children"].items()}
    events = [json.loads(line) for line in row["trace"]]
    invariants.check(invariants.Record(state, [], events, kills=kills))
    # A process that dies between its last save and its last line has nothing left to go on with.
    if row["left"][-1] is None or row["left"][-1]["status"] != "completed":
        assert events[-1]["type"] == "run_stopped"


def test_the_moments_are_where_they_should_be() -> None:
    moments: Counter[str] = Counter(swept("approved")[0]["moments"])
    # Two processes' first saves, their exits, and what the person said; between them, lines.
    assert moments["before a whole"] == 5
    assert moments["before a line"] == moments["in the middle of a line"] == 5
    # The file of each whole, the directory but for exits, and each line but two of results.
    assert moments["before fsync"] == 5 + 3 + 3
    assert moments["delete_file: after the effect"] == 1  # in the middle of the tool
    assert moments["after the answer"] == 3
    for kind in ("turn", "tool_start", "tool_result", "approval_required", "run_stopped"):
        assert moments[f"after the line {kind}"] > 0


def test_unknown_outcomes_do_occur() -> None:
    """The sweep would prove little if no kill ever fell between a start and its result."""
    for name in ("approved", "writes", "approved-child", "writing-child"):
        asked = [bool(row["asked"]) for row in swept(name)[1]]
        assert asked.count(True) >= 3, name
        assert asked.count(False) >= 20, name
    for name in ("plan", "recover", "several", "rejected", "reading-child", "rejected-child"):
        assert not any(row["asked"] for row in swept(name)[1]), name
