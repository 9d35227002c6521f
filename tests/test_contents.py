"""The table of chapters in chapter 00, against the chapters: names, times, and the way through."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CHAPTERS = sorted(NOTEBOOKS.glob("*.ipynb"))
TIME = re.compile(r"^Time: about (\d+) minutes", re.MULTILINE)
ROW = re.compile(r"^\| \[(\d\d)\]\((\S+)\) \| (.+?) \| .+ \| (\d+) min \|$", re.MULTILINE)


def prose(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


CONTENTS = {
    file: (number, title, minutes)
    for number, file, title, minutes in ROW.findall("\n".join(prose(CHAPTERS[0])))
}


def test_the_table_holds_sixteen_chapters_in_order() -> None:
    numbers = [number for number, _, _ in CONTENTS.values()]
    assert numbers == [f"{number:02}" for number in range(16)]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_called_and_takes_what_the_table_says(path: Path) -> None:
    number, title, minutes = CONTENTS[path.name]
    first = prose(path)[0]
    assert first.startswith(f"# {number} · {title}\n")
    assert TIME.findall(first) == [minutes]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_leads_to_its_neighbours_and_its_solutions(path: Path) -> None:
    place = list(CONTENTS).index(path.name)
    neighbours = list(CONTENTS)[max(place - 1, 0) : place + 2]
    neighbours.remove(path.name)
    whole = "\n".join(prose(path))
    for file in [*neighbours, f"solutions/{path.name[:2]}_solutions.ipynb"]:
        assert f"]({file})" in whole
