"""What chapter 14 shows of other libraries: recorded, pinned, and true of what is installed."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers_terms import LACKED, TERMS

ROOT = Path(__file__).resolve().parent.parent
RECORDED = json.loads(peers.RECORDING.read_text("utf-8"))


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", "\n".join(lines), re.MULTILINE))


def test_the_recording_holds_every_run_of_every_library() -> None:
    assert list(RECORDED) == list(peers.LIBRARIES)
    for name, recorded in RECORDED.items():
        runs = [(run["script"], run["cap"]) for run in recorded["runs"]]
        assert runs == list(peers.runs_of(name))


def test_the_recorded_versions_are_the_pinned_ones() -> None:
    pinned = pins("requirements.txt") | pins("requirements-peers.txt")
    for recorded in RECORDED.values():
        assert recorded["versions"].items() <= pinned.items()


def test_no_package_is_pinned_twice() -> None:
    assert not pins("requirements.txt").keys() & pins("requirements-peers.txt").keys()


def test_a_table_of_terms_has_the_same_libraries_in_each_row() -> None:
    columns = {tuple(row) for table in (TERMS, LACKED) for row in table.values()}
    assert len(columns) == 1


def test_the_adapters_load_without_their_libraries() -> None:
    code = (
        "import sys, benchmarks.peers; "
        "print({'agents', 'pydantic_ai', 'langgraph', 'langchain', 'smolagents'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n"


async def _harness(script: str, cap: int) -> dict[str, object]:
    return await peers.observed(peers.run_harness, script, cap)


def test_the_harness_ends_the_same_scripts_by_its_own_exits() -> None:
    plan, runaway = (asyncio.run(_harness(*one)) for one in (("plan", 20), ("runaway", 8)))
    assert (plan["how"], plan["requests"]) == ("status completed", 3)
    assert (runaway["how"], runaway["requests"]) == ("status max_turns_exceeded", 8)


@pytest.mark.parametrize("name", peers.LIBRARIES)
def test_an_installed_library_still_does_what_was_recorded(name: str) -> None:
    if peers.LIBRARIES[name].versions is None:
        pytest.skip(f"{name} is not installed (requirements-peers.txt)")
    # In a process of its own: what these libraries warn of on import is not ours to fail for.
    code = (
        "import asyncio, json, benchmarks.peers as peers; "
        f"print(json.dumps(asyncio.run(peers.observe({name!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == RECORDED[name]["runs"]
