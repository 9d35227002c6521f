"""workbook.source_of: what a chapter shows of a module is the module's own text."""

from __future__ import annotations

from tool_calls import PermanentToolError
from workbook import source_of


class Sample:
    def method(self, number: int) -> int:
        """Add, and add again."""
        total = number
        if total < 0:
            total = 0
        other = 2
        del other
        if total > 3:
            return total
        return 0


def shown(markdown: object) -> str:
    return str(vars(markdown)["data"]).removeprefix("```python\n").removesuffix("\n```")


def test_the_whole_source_is_shown_from_the_first_column() -> None:
    text = shown(source_of(Sample.method))
    assert text.startswith("def method(self, number: int) -> int:\n    ")
    assert text.endswith("\n    return 0")
    assert shown(source_of(PermanentToolError)).startswith("class PermanentToolError")


def test_about_shows_only_the_statements_that_mention_it_each_whole() -> None:
    assert shown(source_of(Sample.method, about="total")).splitlines() == [
        "total = number",
        "if total < 0:",
        "    total = 0",
        "...",
        "if total > 3:",
        "    return total",
    ]


def test_no_dots_stand_before_the_first_statement_or_after_the_last() -> None:
    assert shown(source_of(Sample.method, about="other")) == "other = 2\ndel other"
