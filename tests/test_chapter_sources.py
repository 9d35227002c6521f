"""What a chapter defines and a module holds under the same name is the same text."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tools.notebooks import committed_notebooks

ROOT = Path(__file__).resolve().parent.parent
GROWTH = ("01_the_whole_idea", "02_a_cap_on_turns", "03_a_cap_on_money", "04_five_exits")

Definitions = dict[str, str]


def definitions(source: str) -> Definitions:
    """The text of each function and class at the top level, its decorators and comments too."""
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def chapter_definitions(path: Path) -> Definitions:
    found: Definitions = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            found |= definitions("".join(cell["source"]))
    return found


MODULES = {
    path.stem: definitions(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("*.py"))
}
CHAPTERS = {path.stem: chapter_definitions(path) for path in committed_notebooks()}
SHARED = [
    (chapter, name)
    for chapter, defined in CHAPTERS.items()
    for name in defined
    if any(name in module for module in MODULES.values())
]


@pytest.mark.parametrize(("chapter", "name"), SHARED)
def test_a_definition_of_a_chapter_is_the_text_of_its_module(chapter: str, name: str) -> None:
    texts = [module[name] for module in MODULES.values() if name in module]
    words = f"{name} is also the name of something else in a module: make it the same, or rename it"
    assert CHAPTERS[chapter][name] in texts, words


@pytest.mark.parametrize("chapter", GROWTH)
def test_the_chapters_in_which_the_loop_grows_define_it(chapter: str) -> None:
    assert CHAPTERS[chapter].keys() & MODULES["loops"].keys()


def test_loops_holds_nothing_that_no_chapter_shows() -> None:
    sources = "".join((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8") for name in GROWTH)
    compared = re.findall(r"diff_of\((\w+), (\w+)\)", sources)
    shown = {name for chapter in GROWTH for name in CHAPTERS[chapter]}
    assert MODULES["loops"].keys() <= shown.union(*compared)


def test_texts_that_differ_in_a_comment_or_a_space_are_found() -> None:
    text = "@once\nasync def loop() -> None:\n    go()  # new\n    stop()  # the end"
    assert definitions(f"import x\n\n{text}\n\nawait loop()")["loop"] == text
    assert definitions(text.replace("# new", "# old")) != definitions(text)
    assert definitions(text.replace("# the end", "# an end")) != definitions(text)
    assert definitions(text.replace("@once\n", "")) != definitions(text)
