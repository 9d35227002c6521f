"""What the notebooks share, and what a project of your own would leave here."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.display import Markdown

import scripted_provider
from chat_client import ChatClient, price_for

SYSTEM = (
    "You answer questions about a directory of log files. Use the tools to look before you answer."
)
TASK = "Which file mentions a timeout?"


def client_for(
    script: str | scripted_provider.Script,
    *,
    faults: scripted_provider.Faults | None = None,
    latency_s: float = 0.0,
    chunk_delay_s: float = 0.0,
    **options: Any,
) -> ChatClient:
    """A client of the scripted provider in this kernel, at the book's price.

    ``script`` is the name of one of SCRIPTS, or a script function of your own. ``faults`` go by
    turn, counted from 0. The requests that it receives are in ``client.transport.journal``.
    ``options`` go to ChatClient.
    """
    own = {} if isinstance(script, str) else {script.__name__: script}
    transport = scripted_provider.transport(
        own, faults=faults, latency_s=latency_s, chunk_delay_s=chunk_delay_s
    )
    name = script if isinstance(script, str) else script.__name__
    options = {"price": price_for("book"), **options}
    return ChatClient("http://scripted/v1", name, transport=transport, **options)


def usd(amount: float) -> str:
    """Dollars as the book writes them: to the millionth."""
    return f"${amount:.6f}"


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows of the same keys as a table: numbers to the right, everything else to the left."""
    columns = list(rows[0])
    texts = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    right = [all(_is_number(row[column]) for row in rows) for column in columns]
    for line in (columns, ["-" * width for width in widths], *texts):
        cells = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, (int, float)) or str(value).startswith("$")
    )


def source_of(thing: Callable[..., Any], about: str = "") -> Markdown:
    """The source of a function or class of the modules, as it stands, to read in a cell.

    With ``about``: only those statements of a function that mention it, with dots between.
    """
    source = textwrap.dedent(inspect.getsource(thing)).rstrip()
    if about:
        source = "\n...\n".join(part for part in _statements(source) if about in part)
    return Markdown(f"```python\n{source}\n```")


def _statements(source: str) -> list[str]:
    """The statements of a function's body, each as text that begins in the first column."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = source.splitlines()
    texts = ("\n".join(lines[one.lineno - 1 : one.end_lineno]) for one in function.body)
    return [textwrap.dedent(text) for text in texts]


def diff_of(before: Callable[..., Any], after: Callable[..., Any]) -> Markdown:
    """What changed from one function to the next: lines that left (-) and that came (+)."""
    old, new = (inspect.getsource(one).splitlines() for one in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return Markdown("```diff\n" + "\n".join(lines) + "\n```")
