"""The table in benchmarks/README.md is the one that chapter 11 shows."""

from __future__ import annotations

import json

from model_runs import RECORDED
from tests.support import ROOT


def test_the_table_is_the_recorded_one() -> None:
    recorded = json.loads((RECORDED / "benchmarks.json").read_text("utf-8"))
    readme = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    names = list(recorded["rows"][0])
    assert f"| {' | '.join(names)} |" in readme
    for row in recorded["rows"]:
        assert f"| {' | '.join(row[name] for name in names)} |" in readme
    assert readme.count("\n| ") >= len(recorded["rows"])
    assert f"On {recorded['date']}" in readme
