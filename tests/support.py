"""What several test files use: running a coroutine, the figures, tools that count their runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from harness import Tool, ToolContext

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
FIGURES: dict[str, Any] = json.loads((ROOT / "tests" / "figures.json").read_text("utf-8"))


def go(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one asynchronous test to its end, in an event loop of its own."""
    return asyncio.run(coroutine)


def said(check: Callable[[Any], Any], answer: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """What the check of an exercise, plain or asynchronous, prints for an answer."""

    async def checked() -> None:
        result = check(answer)
        if inspect.isawaitable(result):
            await result

    go(checked())
    return capsys.readouterr().out


def counted(tools: Sequence[Tool], runs: list[str]) -> list[Tool]:
    """The same tools; each execution is noted in ``runs``, as ``name`` or ``name:path``."""
    return [_counted(tool, runs) for tool in tools]


def _counted(tool: Tool, runs: list[str]) -> Tool:
    @functools.wraps(tool.run)
    async def run(args: dict[str, Any], ctx: ToolContext) -> Any:
        runs.append(":".join([tool.name, *map(str, args.values())]))
        return await tool.run(args, ctx)

    return replace(tool, run=run)
