"""How far a run may go: reasons to stop, as predicates over the state, and the money's account."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from run_state import CostBasis, RunState, RunStatus, cost

# A count above this is no count of tokens: an endpoint sent nonsense.
MOST_TOKENS = 10**9


@dataclass(frozen=True)
class StopCondition:
    """A reason to stop, asked before each turn: any function of the state, with a name.

    It is asked before each turn of a run behind a tool, too, of the state of its own run.

    ``harness.run`` takes only those after which a run can go on: it raises ValueError for a
    ``status`` that is final.
    """

    name: str
    met: Callable[[RunState], bool]
    status: RunStatus = "interrupted"


def turn_cap(turns: int) -> StopCondition:
    """Stop after so many answers. Raises ValueError for a negative number or NaN."""
    _check_limit("max_turns", turns)
    return StopCondition("max_turns", lambda state: state.turns >= turns, "max_turns_exceeded")


def budget(usd: float) -> StopCondition:
    """Stop once so much is spent. A turn's price is known after it: overshoot, one turn.

    Raises ValueError for a negative number or NaN.
    """
    _check_limit("max_budget_usd", usd)
    return StopCondition("max_budget", lambda state: state.cost_usd >= usd, "budget_exceeded")


def deadline(seconds: float, clock: Callable[[], float] = time.monotonic) -> StopCondition:
    """Stop at the first turn that would begin ``seconds`` from now, or later; a child's turn too.

    Raises ValueError for a negative number or NaN.
    """
    _check_limit("deadline", seconds)
    end = clock() + seconds
    return StopCondition("deadline", lambda state: clock() >= end)


def _check_limit(name: str, limit: Any) -> None:
    if not isinstance(limit, (int, float)) or not limit >= 0:
        raise ValueError(f"{name} must be 0 or more, or None for no limit; not {limit!r}")


@dataclass(frozen=True)
class Limits:
    """How far a run may go; None lifts a limit. Raises ValueError for a negative one or NaN."""

    max_turns: int | None = 20
    max_budget_usd: float | None = None

    def __post_init__(self) -> None:
        self.conditions()

    def conditions(self) -> list[StopCondition]:
        caps = [turn_cap(self.max_turns)] if self.max_turns is not None else []
        budgets = [budget(self.max_budget_usd)] if self.max_budget_usd is not None else []
        return caps + budgets


# --- money --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bill:
    """What one answer cost: tokens and US dollars, and how far the dollars can be trusted."""

    prompt_tokens: int
    completion_tokens: int
    usd: float
    basis: CostBasis


def bill_for(
    usage: Mapping[str, int] | None,
    price: Mapping[str, float] | None,
    sent: Sequence[Any],
    answer: Mapping[str, Any],
) -> Bill:
    """The bill of ``answer`` to the request ``sent``. Unknown is never taken for nothing.

    Without counts that can be counts, they are estimated: a token for three bytes is more than
    text usually takes, and a budget must rather stop too early than never. Without a price that
    can be a price, the basis is ``unknown``, which no run with a budget accepts.
    """
    basis: CostBasis = "exact"
    if usage is None or not _can_be(usage):
        basis = "estimated"
        usage = {"prompt_tokens": _tokens(sent), "completion_tokens": _tokens(answer)}
    usd = math.nan if price is None else cost(usage, price)
    if not 0 <= usd < math.inf:
        usd, basis = 0.0, "unknown"
    return Bill(usage["prompt_tokens"], usage["completion_tokens"], usd, basis)


def _can_be(usage: Mapping[str, int]) -> bool:
    counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
    counts.append(usage.get("cached_tokens", 0))
    return all(isinstance(count, int) and 0 <= count <= MOST_TOKENS for count in counts)


def _tokens(value: Any) -> int:
    return math.ceil(len(json.dumps(value)) / 3)


@dataclass(frozen=True)
class Account:
    """What a run has spent, kept in its state, and what it may spend. A child run has a parent."""

    state: RunState
    budgets: Sequence[StopCondition]
    parent: Account | None = None

    def pay(self, bill: Bill) -> None:
        """Add an answer to this run and to every run that it is a child of."""
        state = self.state
        state.prompt_tokens += bill.prompt_tokens
        state.completion_tokens += bill.completion_tokens
        # To the billionth of a dollar, so that sums of exact prices stay exact to look at.
        state.cost_usd = round(state.cost_usd + bill.usd, 9)
        order = ("exact", "estimated", "unknown")
        state.cost_basis = max(state.cost_basis, bill.basis, key=order.index)
        if self.parent is not None:
            self.parent.pay(bill)

    @property
    def limited(self) -> bool:
        """Whether a budget, this run's or a parent's, bounds what it spends."""
        return bool(self.budgets) or (self.parent is not None and self.parent.limited)

    @property
    def used_up(self) -> bool:
        """Whether one of these budgets is spent."""
        if any(budget.met(self.state) for budget in self.budgets):
            return True
        return self.parent is not None and self.parent.used_up
