"""The tests' own notebook: small panels, each with the cell that awaits it and one that looks."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from tools.notebooks import KERNELSPEC

# In most panels the scripted reader waits long enough for a slow machine to be the person.
CELLS = {
    "imports": """
import json
import os
import time
from pathlib import Path

from catalogue import catalogue, workspace
from harness import Limits, RunState, load, new_run, save
from run_panel import RunPanel, scripted_reader
from scripted_provider import asks, call, text
from workbook import SYSTEM, TASK, client_for

nobody = scripted_reader(delay_s=0.5)
patient = scripted_reader(delay_s=300)
logs = workspace()
events = []


def panel_for(script, reader=patient, step_s=0.5, **options):
    tools = catalogue(logs, step_s=step_s)
    limits = Limits(max_turns=20, max_budget_usd=0.05)
    state = new_run(SYSTEM, TASK)
    options = {"limits": limits, "trace": events.append, **options}
    return RunPanel(state, tools, client_for(script), reader=reader, **options)
""",
    "scan": "panel = panel_for('scan', step_s=1.0)\npanel.start()",
    "scan-outcome": "print(await panel.outcome())",
    "delete": "deletion = panel_for('destructive')\ndeletion.start()",
    "delete-outcome": "print(await deletion.outcome())",
    "delete-unattended": "deletion = panel_for('destructive', reader=nobody)\ndeletion.start()",
    "delete-unattended-outcome": "print(await deletion.outcome())",
    "files": "print(*sorted(file.name for file in logs.iterdir()))",
    "deletions": """
print(sum(event["type"] == "tool_start" and event["toolName"] == "delete_file"
          for event in events))""",
    "told": "print(deletion.state.messages[-2]['content'])",
    "two-calls": """
def two_deletions(turn, tool_text):
    if turn == 0:
        first = call("c1", "delete_file", {"path": "access.log"})
        return asks(first, call("c2", "delete_file", {"path": "notes.txt"}))
    return text(tool_text)


both = panel_for(two_deletions)
both.start()""",
    "two-calls-outcome": "print(await both.outcome())",
    "left": "left = panel_for('scan', step_s=1.0)\nleft.start()",
    "right": "right = panel_for('scan', step_s=1.0)\nright.start()",
    "left-outcome": "print(await left.outcome())",
    "right-outcome": "print(await right.outcome())",
    "twice": """
earlier = panel.state if 'panel' in globals() else None
panel = panel_for('scan', step_s=1.0)
panel.start()""",
    "twice-earlier": "print(earlier.status, earlier.interruption['reason'])",
    "broken": """
async def falls_over(state, tools, client, **options):
    raise LookupError("<b>no such thing</b>")


broken = panel_for('scan', runner=falls_over)
broken.start()""",
    "broken-outcome": "print(await broken.outcome())",
    "markup": """
def with_markup(turn, tool_text):
    if turn == 0:
        return asks(call("c1", "delete_file", {"path": "<img src=x onerror=document.title='!'>"}))
    return text("<script>document.title='!'</script><b>bold</b>")


markup = panel_for(with_markup)
markup.start()""",
    "markup-outcome": "print(await markup.outcome())",
    "stored": """
stored = panel_for('destructive', store='runs')
stored.state.run_id = 'n1'
stored.start()""",
    "loaded": """
state = load('runs', 'n1')
loaded = RunPanel(state, catalogue(logs), client_for('destructive'), store='runs', reader=patient)
loaded.start()""",
    "loaded-outcome": "print(await loaded.outcome(), load('runs', 'n1').status)",
    "timed": """
stopped = globals().get('stopped', [])


def note_the_end(event):
    if event["type"] == "run_stopped":
        stopped.append(time.time())


timed = panel_for('scan', step_s=5.0, trace=note_the_end)
timed.start()""",
    "times": "print(json.dumps(stopped))",
    "kernel-times": "print(json.dumps((await timed.outcome()).stop_s))",
}
UNATTENDED = ("imports", "delete-unattended", "delete-unattended-outcome", "files", "told")
# The first cell of a chapter that is run with nobody at the buttons.
SHORT_PATIENCE = "import os\nos.environ['WORKBOOK_READER_DELAY_S'] = '0.5'"


def write_notebooks(directory: Path) -> None:
    """The tests' notebooks, and of each chapter a copy whose scripted reader is impatient.

    The copies have no outputs, so that no stored one is taken for a new one.
    """
    _write(directory / "panels.ipynb", CELLS)
    _write(directory / "unattended.ipynb", {name: CELLS[name] for name in UNATTENDED})
    for path in (directory / "notebooks").glob("*.ipynb"):
        chapter = nbformat.read(path, as_version=4)
        for cell in chapter["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        chapter["cells"].insert(0, new_code_cell(SHORT_PATIENCE, id="short-patience"))
        nbformat.write(chapter, path.with_name(f"unattended_{path.name}"))


def _write(path: Path, cells: dict[str, str]) -> None:
    made = [new_code_cell(source.strip(), id=name) for name, source in cells.items()]
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": KERNELSPEC}), path)
