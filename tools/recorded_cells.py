"""In the static edition: ``%%recorded`` shows what a cell printed where it could run.

``import recorded_cells`` registers the magic. tools/site.py puts it before the cells that need a
process, a thread, a socket or a compiled package, with the outputs stored in the notebook.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

WHY = {
    "needs-process": "needs a process of its own, which a page cannot start",
    "needs-thread": "needs a thread, and a page has none",
    "needs-socket": "needs a socket, which a page cannot open",
    "needs-disk": "measures a disk, and a page keeps its files in memory",
    "needs-stack": "nests deeper than the stack of a page, which would end Python here",
    "needs-package": "needs a package that is not in this edition",
}


def recorded(line: str, cell: str) -> None:
    """Show the recorded outputs of one cell: ``%%recorded NEED CELL_ID``."""
    need, cell_id = line.split()
    print(f"Not run here: this cell {WHY[need]}. On a computer it showed:\n")
    outputs = json.loads(Path(__file__).with_name("recorded_cells.json").read_text("utf-8"))
    for output in outputs[cell_id]:
        show(output)


def show(output: dict[str, Any]) -> None:
    """One stored output of a notebook, shown again."""
    if output["output_type"] == "stream":
        stream = sys.stderr if output["name"] == "stderr" else sys.stdout
        stream.write("".join(output["text"]))
    elif "data" in output:
        data = {kind: _joined(content) for kind, content in output["data"].items()}
        display(data, raw=True)


def _joined(content: Any) -> Any:
    return "".join(content) if isinstance(content, list) else content


if shell := get_ipython():
    shell.register_magic_function(recorded, "cell", "recorded")  # type: ignore[arg-type]  # its annotation describes a method
