"""Run, tidy and check the notebooks: python -m tools.notebooks run|clean|check [NOTEBOOK ...]

A committed notebook has been executed, holds no trace of the machine that executed it, and is
written in one canonical form, so that a diff shows what a person changed and nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.reader import NotJSONError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT_S = 60
# How long the scripted reader waits before it acts, where no person is at the buttons.
READER_DELAY_S = "0.2"

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
MAY_RAISE = "raises-exception"

MEMORY_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
# Directories in which a machine keeps what is its own. A lesson may well speak of /etc/shadow.
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/-])/(?:home|Users|root|tmp|var|private|opt|usr|mnt|workspace)/[\w.-]+"
    r"|\b[A-Z]:\\+\w+"
)
# Text that a reader sees; what is left out is binary.
READABLE = re.compile(r"text/.+|image/svg\+xml|application/(?:.+\+)?json")

# Notebook documents are JSON, and nbformat gives them as untyped dictionaries.
Json = dict[str, Any]


# --- clean ----------------------------------------------------------------------------------


def cleaned(notebook: Json) -> Json:
    """A copy in the canonical form. Sources, outputs' text, tags and cell ids stay."""
    notebook = deepcopy(notebook)
    notebook["metadata"] = {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}}
    executed = 0
    for cell in notebook["cells"]:
        tags = cell.get("metadata", {}).get("tags")
        cell["metadata"] = {"tags": tags} if tags else {}
        if cell["cell_type"] != "code":
            continue
        # A cell that never ran keeps its null: `check` must see it.
        if cell["execution_count"] is not None:
            executed += 1
            cell["execution_count"] = executed
        cell["outputs"] = _clean_outputs(cell["outputs"], cell["execution_count"])
    return notebook


def _clean_outputs(outputs: list[Json], execution_count: int | None) -> list[Json]:
    kept: list[Json] = []
    for output in outputs:
        output.pop("transient", None)
        if "data" in output:
            # The widget is gone when the notebook is opened again; its text/plain stays.
            output["data"].pop(WIDGET_VIEW, None)
            if not output["data"]:
                continue
        if output["output_type"] == "execute_result":
            output["execution_count"] = execution_count
        # Where the kernel cut a stream in two is chance.
        if kept and _same_stream(kept[-1], output):
            kept[-1]["text"] += output["text"]
        else:
            kept.append(output)
    return kept


def _same_stream(first: Json, second: Json) -> bool:
    streams = first["output_type"] == second["output_type"] == "stream"
    return streams and bool(first["name"] == second["name"])


# --- check ----------------------------------------------------------------------------------


def problems(path: Path) -> Iterator[str]:
    """What keeps the notebook at `path` from being committed, one line each."""
    text = path.read_text(encoding="utf-8")
    try:
        notebook = _parsed(text)
    except (NotJSONError, nbformat.ValidationError) as error:
        yield f"not a notebook: {_first_line(str(error))}"
        return
    if text != _written(cleaned(notebook)):
        yield "not in the canonical form: run `make tidy`"
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] == "code":
            for problem in _cell_problems(cell):
                yield f"cell {number}: {problem}"


def _cell_problems(cell: Json) -> Iterator[str]:
    if not cell["source"].strip():
        yield "an empty code cell"
        return
    if cell["execution_count"] is None:
        yield "never executed: run `make notebooks`"
    for output in cell["outputs"]:
        if output["output_type"] == "error" and MAY_RAISE not in cell["metadata"].get("tags", []):
            yield f"a stored error ({output['ename']}) without the tag {MAY_RAISE}"
        if output["output_type"] == "stream" and output["name"] == "stderr":
            yield f"something on stderr: {_first_line(output['text'])}"
        if WIDGET_VIEW in output.get("data", {}):
            yield "a widget view, which nobody else can open"
        for text in _texts(output):
            if found := MEMORY_ADDRESS.search(text):
                yield f"a memory address in an output: {found[0]}"
            if found := ABSOLUTE_PATH.search(text):
                yield f"an absolute path in an output: {found[0]}"
            elif str(ROOT) in text:
                yield "the path of this very directory in an output"


def _texts(output: Json) -> Iterator[str]:
    """Every text of an output that a reader may see."""
    yield output.get("text", "")
    yield "\n".join(output.get("traceback", []))
    for mime, value in output.get("data", {}).items():
        if READABLE.fullmatch(mime):
            yield str(value)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:80]


# --- run ------------------------------------------------------------------------------------


def executed(notebook: Json, directory: Path) -> Json:
    """The notebook after Restart and Run All in `directory`.

    A cell that raises ends it with CellExecutionError, unless the cell is tagged for that.
    """
    os.environ.setdefault("WORKBOOK_READER_DELAY_S", READER_DELAY_S)
    node = nbformat.from_dict(notebook)
    NotebookClient(
        node,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(directory)}},
        # Its remark on each start, that it speaks TCP without encryption, is not for us.
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        store_widget_state=False,
    ).execute()
    return dict(node)


# --- files and the command line -------------------------------------------------------------


def committed_notebooks(directory: Path = NOTEBOOKS) -> list[Path]:
    found = directory.rglob("*.ipynb")
    return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)


def _parsed(text: str) -> Json:
    notebook = nbformat.reads(text, as_version=4)
    # Reading only logs what is wrong with it.
    nbformat.validate(notebook)
    return dict(notebook)


def _written(notebook: Json) -> str:
    return str(nbformat.writes(nbformat.from_dict(notebook))).rstrip("\n") + "\n"


def _save(path: Path, notebook: Json) -> None:
    path.write_text(_written(notebook), encoding="utf-8", newline="\n")


def _shown(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def run(paths: list[Path]) -> int:
    failures = 0
    for path in paths:
        print(f"running {_shown(path)}", flush=True)
        try:
            notebook = executed(_parsed(path.read_text(encoding="utf-8")), path.resolve().parent)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"{_shown(path)}: left as it was: {error}", file=sys.stderr)
            failures += 1
        else:
            _save(path, cleaned(notebook))
    return min(failures, 1)


def clean(paths: list[Path]) -> int:
    for path in paths:
        before = path.read_text(encoding="utf-8")
        notebook = cleaned(_parsed(before))
        if _written(notebook) != before:
            _save(path, notebook)
            print(f"tidied {_shown(path)}")
    return 0


def check(paths: list[Path]) -> int:
    count = 0
    for path in paths:
        for problem in problems(path):
            print(f"{_shown(path)}: {problem}")
            count += 1
    print(f"{len(paths)} notebooks, {count} problems")
    return min(count, 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks")
    commands = {"run": run, "clean": clean, "check": check}
    parser.add_argument("command", choices=commands)
    parser.add_argument("paths", nargs="*", type=Path, help="all notebooks, when none is named")
    options = parser.parse_args(arguments)
    return commands[options.command](options.paths or committed_notebooks())


if __name__ == "__main__":
    sys.exit(main())
