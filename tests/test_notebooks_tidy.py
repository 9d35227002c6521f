"""tools/notebooks.py on small notebooks, and every committed notebook through its check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tools import notebooks
from tools.notebooks import WIDGET_VIEW

Json = dict[str, Any]


def code(source: str, *outputs: Json, count: int | None = 1, **metadata: Any) -> Json:
    return {
        "cell_type": "code",
        "id": "a-cell",
        "execution_count": count,
        "metadata": metadata,
        "outputs": list(outputs),
        "source": source,
    }


def stream(text: str, name: str = "stdout") -> Json:
    return {"output_type": "stream", "name": name, "text": text}


def display(**data: str) -> Json:
    """A display of MIME types, their `/` written as `__`."""
    named = {mime.replace("__", "/"): value for mime, value in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": named}


def error(name: str = "ValueError") -> Json:
    return {"output_type": "error", "ename": name, "evalue": "", "traceback": []}


def notebook(*cells: Json, **metadata: Any) -> Json:
    numbered = [{**cell, "id": f"cell-{n}"} for n, cell in enumerate(cells)]
    return {"cells": numbered, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def written(directory: Path, content: Json) -> Path:
    path = directory / "small.ipynb"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def tidied(directory: Path, content: Json) -> Path:
    path = written(directory, content)
    assert notebooks.clean([path]) == 0
    return path


def cells(path: Path) -> list[Json]:
    found: list[Json] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


# --- clean


def test_clean_keeps_of_the_metadata_only_what_it_must(tmp_path: Path) -> None:
    path = tidied(
        tmp_path,
        notebook(
            code(
                "1", collapsed=True, scrolled=False, execution={"a": "b"}, tags=["raises-exception"]
            ),
            widgets={"application/vnd.jupyter.widget-state+json": {}},
            kernelspec={"display_name": "mine", "language": "python", "name": "mine"},
            language_info={"name": "python", "version": "3.11.7"},
        ),
    )
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["metadata"] == {
        "kernelspec": notebooks.KERNELSPEC,
        "language_info": {"name": "python"},
    }
    assert whole["cells"][0]["metadata"] == {"tags": ["raises-exception"]}
    assert whole["cells"][0]["id"] == "cell-0"


def test_clean_leaves_of_a_widget_its_text(tmp_path: Path) -> None:
    view = {WIDGET_VIEW: "model", "text__plain": "Button()"}
    path = tidied(tmp_path, notebook(code("b", display(**view), display(**{WIDGET_VIEW: "m"}))))
    assert [output["data"] for output in cells(path)[0]["outputs"]] == [
        {"text/plain": ["Button()"]}
    ]


def test_clean_numbers_what_was_executed_and_nothing_else(tmp_path: Path) -> None:
    result = {"output_type": "execute_result", "execution_count": 9, "metadata": {}, "data": {}}
    result["data"] = {"text/plain": "2"}
    path = tidied(
        tmp_path,
        notebook(code("1", count=7), code("never", count=None), code("2", result, count=9)),
    )
    assert [cell["execution_count"] for cell in cells(path)] == [1, None, 2]
    assert cells(path)[2]["outputs"][0]["execution_count"] == 2


def test_clean_joins_a_stream_that_was_cut_and_not_two_streams(tmp_path: Path) -> None:
    pieces = [stream("a"), stream("b\n"), stream("c", "stderr"), stream("d")]
    path = tidied(tmp_path, notebook(code("1", *pieces)))
    assert [(out["name"], "".join(out["text"])) for out in cells(path)[0]["outputs"]] == [
        ("stdout", "ab\n"),
        ("stderr", "c"),
        ("stdout", "d"),
    ]


def test_clean_writes_as_nbformat_does_and_changes_nothing_the_second_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tidied(tmp_path, notebook(code("'é'", stream("é\n"))))
    text = path.read_text(encoding="utf-8")
    assert text.startswith('{\n "cells": [\n  {')
    assert text.endswith("}\n")
    assert "é" in text
    assert "tidied" in capsys.readouterr().out
    notebooks.clean([path])
    assert path.read_text(encoding="utf-8") == text
    assert capsys.readouterr().out == ""


# --- check


def test_check_passes_a_tidy_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tidied(tmp_path, notebook(code("print('/etc/shadow')", stream("/etc/shadow\n"))))
    assert notebooks.check([path]) == 0
    assert capsys.readouterr().out.endswith("\n1 notebooks, 0 problems\n")


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (code("1", count=None), "never executed"),
        (code("  \n"), "an empty code cell"),
        (code("1", error()), "a stored error (ValueError)"),
        (code("1", stream("careful", "stderr")), "something on stderr: careful"),
        (code("1", stream("<object at 0x7f1c2b3a4d50>")), "a memory address"),
        (code("1", display(text__html="<b>0x7f1c2b3a4d50</b>")), "a memory address"),
        (
            code("1", stream("see /home/reader/log.txt")),
            "an absolute path in an output: /home/reader",
        ),
        (code("1", stream("'/tmp/abc123/data'")), "an absolute path in an output: /tmp/abc123"),
        (code("1", stream(r"C:\Users\reader")), "an absolute path"),
        (
            code("1", {**error(), "traceback": ["/usr/lib/x"]}, tags=["raises-exception"]),
            "/usr/lib",
        ),
    ],
)
def test_check_names_each_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cell: Json, problem: str
) -> None:
    path = tidied(tmp_path, notebook(code("0"), cell))
    assert notebooks.check([path]) == 1
    lines = capsys.readouterr().out.splitlines()[1:-1]
    assert len(lines) == 1
    assert "cell 2: " in lines[0]
    assert problem in lines[0]


def test_check_wants_the_canonical_form_and_no_widget_view(tmp_path: Path) -> None:
    path = written(tmp_path, notebook(code("b", display(**{WIDGET_VIEW: "m", "text__plain": "B"}))))
    assert list(notebooks.problems(path)) == [
        "not in the canonical form: run `make tidy`",
        "cell 1: a widget view, which nobody else can open",
    ]


@pytest.mark.parametrize(
    "text", ["<<<<<<< HEAD", "{}", json.dumps(notebook({"cell_type": "code", "source": "1"}))]
)
def test_check_says_so_when_it_is_no_notebook(tmp_path: Path, text: str) -> None:
    path = tmp_path / "small.ipynb"
    path.write_text(text, encoding="utf-8")
    (problem,) = notebooks.problems(path)
    assert problem.startswith("not a notebook: ")


@pytest.mark.parametrize(
    "text", ["http://localhost/tmp/x", "the/home/of", "0x1F", "[1, 2] / 3", "data/logs/notes.txt"]
)
def test_check_lets_pass_what_only_looks_like_a_path(tmp_path: Path, text: str) -> None:
    path = tidied(tmp_path, notebook(code("1", stream(text))))
    assert list(notebooks.problems(path)) == []


def test_an_error_that_the_lesson_wants_is_no_problem(tmp_path: Path) -> None:
    path = tidied(tmp_path, notebook(code("1/0", error(), tags=["raises-exception"])))
    assert list(notebooks.problems(path)) == []


# --- run


def test_run_executes_beside_the_notebook_and_leaves_it_tidy(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("found", encoding="utf-8")
    source = "import os, pathlib\nprint(pathlib.Path('here.txt').read_text())"
    delay = "print(os.environ['WORKBOOK_READER_DELAY_S'])"
    path = written(tmp_path, notebook(code(source, count=None), code(delay, count=None)))
    assert notebooks.run([path]) == 0
    assert [cell["outputs"][0]["text"] for cell in cells(path)] == [["found\n"], ["0.2\n"]]
    assert list(notebooks.problems(path)) == []


def test_run_leaves_a_notebook_whose_cell_raises_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, notebook(code("1/0", count=None)))
    before = path.read_bytes()
    assert notebooks.run([path]) == 1
    assert path.read_bytes() == before
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_only_the_tag_lets_a_cell_raise(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("1/0")
    book = nbformat.v4.new_notebook(cells=[cell])
    with pytest.raises(CellExecutionError):
        notebooks.executed(book, tmp_path)
    cell.metadata["tags"] = ["raises-exception"]
    assert (
        notebooks.executed(book, tmp_path)["cells"][0]["outputs"][0]["ename"] == "ZeroDivisionError"
    )


# --- the committed notebooks


def test_committed_notebooks_are_found_without_checkpoints(tmp_path: Path) -> None:
    for name in ("b.ipynb", "a.ipynb", "solutions/c.ipynb", ".ipynb_checkpoints/a.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [
        path.relative_to(tmp_path).as_posix() for path in notebooks.committed_notebooks(tmp_path)
    ]
    assert found == ["a.ipynb", "b.ipynb", "solutions/c.ipynb"]


@pytest.mark.parametrize("path", notebooks.committed_notebooks(), ids=lambda path: path.stem)
def test_every_committed_notebook_passes(path: Path) -> None:
    assert list(notebooks.problems(path)) == []
