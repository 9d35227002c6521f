"""Limits: reasons to stop, as predicates over the state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from run_state import RunState, RunStatus


@dataclass(frozen=True)
class StopCondition:
    """A reason to stop, asked before each turn: any function of the state, with a name."""

    name: str
    met: Callable[[RunState], bool]
    status: RunStatus = "interrupted"


def turn_cap(turns: int) -> StopCondition:
    """Stop after so many answers."""
    return StopCondition("max_turns", lambda state: state.turns >= turns, "max_turns_exceeded")


def budget(usd: float) -> StopCondition:
    """Stop once so much is spent. A turn's price is known after it: overshoot, one turn."""
    return StopCondition("max_budget", lambda state: state.cost_usd >= usd, "budget_exceeded")


def deadline(seconds: float, clock: Callable[[], float] = time.monotonic) -> StopCondition:
    """Stop at the first turn that would begin ``seconds`` from now, or later."""
    end = clock() + seconds
    return StopCondition("deadline", lambda state: clock() >= end)


@dataclass(frozen=True)
class Limits:
    """How far a run may go; None lifts a limit. Raises ValueError for a negative one or NaN."""

    max_turns: int | None = 20
    max_budget_usd: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"{name} must be 0 or more, or None for no limit; not {limit}")

    def conditions(self) -> list[StopCondition]:
        caps = [turn_cap(self.max_turns)] if self.max_turns is not None else []
        budgets = [budget(self.max_budget_usd)] if self.max_budget_usd is not None else []
        return caps + budgets
