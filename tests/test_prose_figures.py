"""What the prose says in figures was measured in an output above it, or is an input in the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIGURES = json.loads((Path(__file__).with_name("figures.json")).read_text("utf-8"))

# An amount, a decimal, a number with thousands separators, or a whole number of three digits or
# more. Smaller whole numbers count things that the reader sees, and name chapters.
FIGURE = re.compile(r"(?<![\w.,])\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w,]*\d)")
# Not figures: link targets, code, versions and dates.
NOT_PROSE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|\b\d{4}-\d\d-\d\d\b", re.DOTALL)
# Statuses of HTTP are names.
HTTP = re.compile(r"\b[1-5]\d\d\b")


def figures_in(markdown: str) -> list[str]:
    """The figures of a Markdown cell, without separators, currency and code."""
    found = FIGURE.findall(NOT_PROSE.sub(" ", markdown))
    plain = [figure.replace(",", "") for figure in found]
    return [
        figure
        for figure in plain
        if figure.startswith("$")
        or "." in figure
        or (len(figure) > 2 and not HTTP.fullmatch(figure))
        if not re.fullmatch(r"20[23]\d", figure)
    ]


def shown_by(cell: dict[str, Any]) -> Iterator[str]:
    """What a code cell printed and displayed."""
    for output in cell["outputs"]:
        yield "".join(output.get("text", ""))
        for content in output.get("data", {}).values():
            yield content if isinstance(content, str) else "".join(map(str, content))


def unsupported(notebook: dict[str, Any]) -> list[tuple[str, str]]:
    """Each figure of the prose that nothing above it shows, with the beginning of its cell."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    above = "\n".join("".join(cell["source"]) for cell in code).replace("_", "")
    missing = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            above += "\n" + "\n".join(shown_by(cell)).replace(",", "")
            continue
        source = "".join(cell["source"])
        for figure in figures_in(source):
            number = figure.lstrip("$")
            if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", above):
                missing.append((figure, source[:80]))
    return missing


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_figure_in_prose_stands_above_it(path: Path) -> None:
    assert unsupported(json.loads(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("prose", "shown", "missing"),
    [
        ("It costs $0.002470.", "cost=$0.002470", []),
        ("It costs $0.002471.", "cost=$0.002470", ["$0.002471"]),
        ("337,299 tokens", "337299", []),
        ("337,299 tokens", "337298", ["337299"]),
        ("3.7 times", "ratio 3.67", ["3.7"]),
        ("3 turns, HTTP 402, chapter 07, `1,234`", "", []),
    ],
)
def test_the_search_itself(prose: str, shown: str, missing: list[str]) -> None:
    output = {"output_type": "stream", "name": "stdout", "text": [shown]}
    notebook = {
        "cells": [
            {"cell_type": "code", "source": [], "outputs": [output]},
            {"cell_type": "markdown", "source": [prose]},
        ]
    }
    assert [figure for figure, _ in unsupported(notebook)] == missing


@pytest.mark.parametrize("row", FIGURES["rows"], ids=lambda row: row["id"])
def test_every_row_of_the_figures_is_in_a_stored_output(row: dict[str, Any]) -> None:
    outputs = ""
    for path in CHAPTERS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                outputs += "\n".join(shown_by(cell))
    expect = row["expect"]
    assert f"${expect['cost']:.6f}" in outputs
    assert f"{expect['tin']:,}" in outputs
