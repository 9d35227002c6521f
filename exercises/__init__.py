"""Checks for the exercises: each says at once whether an answer is right, and if not, why.

An exercise's cell holds ``answer = ...`` until the reader replaces the three dots; a check of the
three dots says that there is no answer yet, so that Run All passes.
"""

from __future__ import annotations

import inspect
import math
from typing import Any


def unanswered(answer: Any) -> bool:
    """True, with a line for the reader, while the three dots stand."""
    if answer is ...:
        print("No answer yet: replace the three dots, then run this cell again.")
        return True
    return False


def no_script(answer: Any) -> bool:
    """True, with a line for the reader, while the answer is no script."""
    if unanswered(answer):
        return True
    if not inspect.isfunction(answer):
        wrong("A script is asked for: a function of turn and tool_text that returns a message.")
        return True
    return False


def right(words: str) -> None:
    """Say that an answer is right, and what it shows."""
    print(f"Right. {words}")


def wrong(words: str) -> None:
    """Say that an answer is not right yet, and where to look."""
    print(f"Not yet. {words}")


def number(
    answer: Any, expected: float, words: str, hints: dict[float, str], otherwise: str
) -> None:
    """Check a number. ``hints`` explains the wrong answers that people give."""
    if unanswered(answer):
        return
    if not isinstance(answer, (int, float)) or isinstance(answer, bool):
        wrong(f"A number is asked for; this is a {type(answer).__name__}.")
        return
    if math.isclose(answer, expected, rel_tol=1e-6, abs_tol=5e-7):
        right(words)
        return
    for guess, hint in hints.items():
        if math.isclose(answer, guess, rel_tol=1e-6, abs_tol=5e-7):
            wrong(hint)
            return
    wrong(otherwise)
