"""What the notebooks share: the meter, the rendered diff, and the check of the environment."""

from __future__ import annotations

import asyncio
import sys
from importlib import metadata
from pathlib import Path

import pytest

import scripted_provider
import workbook
from loops import bare_loop, capped_loop, priced_loop
from workbook import OPENING, Meter, check_environment, client_for, diff_of


def test_the_meter_passes_answers_on_and_adds_up_what_they_cost() -> None:
    meter = Meter(client_for("plan"))
    assert meter.cost_usd == 0
    first = asyncio.run(meter.complete(list(OPENING)))
    assert first.message["tool_calls"][0]["id"] == "c1"
    asyncio.run(meter.complete(list(OPENING)))
    assert first.usage is not None
    assert meter.turns == 2
    assert meter.usages == [first.usage, first.usage]
    assert meter.prompt_tokens == 2 * first.usage["prompt_tokens"]
    assert meter.completion_tokens == 2 * first.usage["completion_tokens"]
    assert meter.cost_usd * 1e6 == pytest.approx(
        2 * (2 * first.usage["prompt_tokens"] + 12 * first.usage["completion_tokens"])
    )


def test_the_meter_passes_on_a_stream() -> None:
    pieces: list[str] = []
    asyncio.run(Meter(client_for("once")).complete(list(OPENING), on_delta=pieces.append))
    assert pieces == []  # that turn is a call; it was streamed, and has no text
    told = [*OPENING, {"role": "assistant", "content": ""}]
    asyncio.run(Meter(client_for("once")).complete(told, on_delta=pieces.append))
    assert "".join(pieces) == "errors.log mentions a timeout."


def test_a_diff_shows_what_came_and_not_the_marks_of_the_step_before() -> None:
    first, second = diff_of(bare_loop, capped_loop).data, diff_of(capped_loop, priced_loop).data
    assert "+        if turns >= max_turns:" in first
    assert "+        if spent >= max_budget_usd:" in second
    assert "# new" not in first + second
    left = [line for line in second.splitlines() if line.startswith("-")]
    assert [line for line in left if "turns +=" in line or "turns = 0" in line] == []


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    check_environment()
    return capsys.readouterr().out.splitlines()


def test_a_good_environment_is_ok_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    *checks, verdict = lines(capsys)
    assert [line[:4] for line in checks] == ["ok  "] * 10
    assert verdict == "Everything is in place."


def test_a_wrong_version_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.1")
    said = [line for line in lines(capsys) if line.startswith("NO")]
    assert len(said) == len(workbook.CHECKED_PACKAGES)
    assert said[0].startswith("NO  jupyterlab as pinned: 0.1 is installed and 4.")
    assert said[0].endswith("is pinned; run: pip install -r requirements.txt")


def test_a_missing_package_an_old_python_and_missing_pins_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(workbook, "CHECKED_PACKAGES", ("no-such-package",))
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    python, package, *_, verdict = lines(capsys)
    assert python.startswith("NO  Python 3.11 to 3.14: this kernel runs 3.")
    assert package.startswith("NO  no-such-package as pinned: not installed")
    assert "Restart Kernel" in verdict
    monkeypatch.setattr(workbook, "REQUIREMENTS", tmp_path / "requirements.txt")
    assert "requirements.txt is not beside workbook.py" in lines(capsys)[1]


def test_a_damaged_vocabulary_is_found_where_it_is_and_where_it_hurts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vocabulary").write_bytes(b"not it")
    monkeypatch.setattr(scripted_provider, "VOCABULARY", tmp_path / "vocabulary")
    scripted_provider.encoding.cache_clear()
    scripted_provider._count_part.cache_clear()
    try:
        said = [line for line in lines(capsys) if line.startswith("NO")]
    finally:
        scripted_provider.encoding.cache_clear()
    assert len(said) == 2
    assert all("git checkout -- data" in line for line in said)
