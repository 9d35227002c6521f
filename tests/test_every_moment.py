"""A process may die at any moment: whatever the file holds then, the run ends as it would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalogue import catalogue
from harness import RunState, load, new_run, run
from tests.support import go
from workbook import SYSTEM, TASK, client_for


def copies_at_each_event(script: str, store: Path) -> list[str]:
    """What is on disk at each event of a run with a store."""
    file, copies = store / "r1.json", list[str]()

    def copy(event: dict[str, Any]) -> None:
        copies.append(file.read_text("utf-8"))

    state = new_run(SYSTEM, TASK, "r1")
    go(run(state, catalogue(), client_for(script), store=store, trace=copy))
    return copies


def loaded(copy: str, store: Path) -> RunState:
    store.mkdir()
    (store / "r1.json").write_text(copy, "utf-8")
    return load(store, "r1")


@pytest.mark.parametrize(
    ("script", "turns", "cost"), [("plan", 3, 0.00247), ("recover", 4, 0.00355)]
)
def test_a_run_that_dies_at_any_event_ends_at_the_same_price(
    script: str, turns: int, cost: float, tmp_path: Path
) -> None:
    for number, copy in enumerate(copies_at_each_event(script, tmp_path)):
        store = tmp_path / str(number)
        state = loaded(copy, store)
        go(run(state, catalogue(), client_for(script), store=store))
        assert (state.status, state.turns, state.cost_usd) == ("completed", turns, cost), number


def test_the_answer_that_ends_a_run_is_saved_with_what_it_means(tmp_path: Path) -> None:
    *_, last_turn, _ = copies_at_each_event("plan", tmp_path)
    saved = loaded(last_turn, tmp_path / "copy")
    assert saved.status == "completed"
    assert saved.output.startswith("errors.log mentions a timeout")
