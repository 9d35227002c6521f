"""workbook.source_of: what a chapter shows of a module is the module's own text."""

from __future__ import annotations

import inspect

import harness
from tool_calls import PermanentToolError
from workbook import source_of


def shown(markdown: object) -> str:
    return str(vars(markdown)["data"])


def test_the_whole_source_is_shown_from_the_first_column() -> None:
    text = shown(source_of(harness._Run.remember))
    assert text.startswith("```python\ndef remember(self")
    assert text.endswith("no longer be true\n```")
    assert shown(source_of(PermanentToolError)).startswith("```python\nclass PermanentToolError")


def test_about_shows_only_the_statements_that_mention_it_each_whole() -> None:
    text = shown(source_of(harness._Run.accept, about="invalid_turns"))
    count, stop = text.removeprefix("```python\n").removesuffix("\n```").split("\n...\n")
    assert count.startswith("state.invalid_turns = (")
    assert count.endswith(")")
    assert stop.startswith("if state.invalid_turns >= MAX_INVALID_TURNS:")
    assert stop.splitlines()[-1].strip() == 'return _Exit("failed", error=why)'
    # Nothing is made up: each line stands in the module.
    source = inspect.getsource(harness._Run.accept)
    assert all(line.strip() in source for line in (count + "\n" + stop).splitlines())


def test_neighbours_stand_together_without_dots() -> None:
    text = shown(source_of(harness._Run.context, about="call_id"))
    first, second = text.removeprefix("```python\n").removesuffix("\n```").splitlines()
    assert first == 'run_id, call_id = self.state.run_id, call["id"]'
    assert second.startswith("return ToolContext(")
