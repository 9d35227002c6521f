"""The repository's own promises: exact pins, every module installed, the lessons' files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_requirement_is_pinned_and_the_modules_come_last() -> None:
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines.pop() == "-e ."
    assert [line for line in lines if not re.match(r"[a-z0-9-]+==[\w.]+( ; .+)?$", line)] == []
    assert len({line.partition("==")[0] for line in lines}) == len(lines)


def test_every_module_is_installed() -> None:
    """One that is not listed can be imported from here, but not from a notebook."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = metadata["tool"]["setuptools"]["py-modules"]
    modules = {path.stem for path in ROOT.glob("*.py")} - {"conftest"}
    assert modules <= set(listed)
    assert listed == sorted(set(listed))


def test_the_lessons_files_are_the_ones_that_the_figures_count() -> None:
    figures = json.loads((ROOT / "tests" / "figures.json").read_text(encoding="utf-8"))
    logs = {path.name: path.read_bytes() for path in (ROOT / "data" / "logs").iterdir()}
    assert json.dumps(sorted(logs), separators=(",", ":")) == figures["inputs"]["list_files_result"]
    for name in ("errors.log", "notes.txt"):
        assert logs[name] == figures["inputs"]["files"][name].encode()
    assert len(logs["access.log"]) < len(logs["errors.log"])


def test_the_tests_that_the_readme_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "README.md").read_text("utf-8"))
    assert len(named) >= 10
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
