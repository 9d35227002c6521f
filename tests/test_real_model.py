"""The six tasks with a real model: what must hold for any model, and never its text.

The model is the one of requirements-model.txt, wherever it is installed: in the environment of
the tests, or in .venv-model. Where it is not, these tests are skipped and say why.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_runs import MAX_TURNS, TASKS, TaskRun, live_client, load_recording, run_tasks
from tests.support import ROOT, go
from tests.test_model_runs import FILES

EXITS = {"completed", "failed", "max_turns_exceeded", "budget_exceeded", "interrupted"}
CALL_S = 120.0
START_S = 120.0

# Prints nothing where a model can be started, and why not where it cannot.
CAN_START = """
import local_model
try:
    local_model.llama(), local_model.embedded_model()
except local_model.ModelError as problem:
    print(problem)
"""


# --- what holds for any model


def replies(run: TaskRun) -> list[dict[str, Any]]:
    """The bodies of the answers that were answers."""
    return [json.loads(one.reply) for one in run.exchanges if one.status == 200]


def calls_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for message in messages for call in message.get("tool_calls") or ()]


def check(runs: list[TaskRun], *, structured: bool = True) -> None:
    """Assert what the harness promises, whatever the model said."""
    assert [run.task for run in runs] == list(TASKS)
    for run in runs:
        state = run.state
        assert state.status in EXITS
        assert state.turns == len(replies(run)) <= MAX_TURNS
        usages = [reply["usage"] for reply in replies(run)]
        assert state.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)
        assert state.completion_tokens == sum(usage["completion_tokens"] for usage in usages)
        for call in calls_of(run.exchanges[-1].request["messages"]):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        for exchange in run.exchanges:
            assert unanswered(exchange.request["messages"]) == []
    answers = [reply["choices"][0]["message"] for run in runs for reply in replies(run)]
    assert bool(calls_of(answers)) == structured


def unanswered(messages: list[dict[str, Any]]) -> list[str]:
    """The ids of the calls that are not answered exactly once, directly after their message."""
    wrong: list[str] = []
    expected: list[str] = []
    for message in [*messages, {"role": "user"}]:
        if message["role"] == "tool" and message["tool_call_id"] in expected:
            expected.remove(message["tool_call_id"])
            continue
        wrong += expected
        expected = [call["id"] for call in message.get("tool_calls") or ()]
    return wrong


def test_a_call_without_its_answer_is_noticed() -> None:
    call = {"id": "c1", "function": {"name": "list_files", "arguments": "{}"}}
    asked = {"role": "assistant", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "[]"}
    assert unanswered([asked, answer]) == []
    assert unanswered([asked]) == ["c1"]
    assert unanswered([asked, {"role": "user", "content": "and?"}, answer]) == ["c1"]


# --- the recorded models


@pytest.mark.parametrize("name", FILES)
def test_it_holds_for_the_recorded_models(name: str) -> None:
    recording = load_recording(name)
    check(go(run_tasks(recording.client())), structured=not recording.calls_in_text)


# --- a model on this machine


def pythons() -> list[Path]:
    """The interpreters in whose environment the model may be installed."""
    found = [Path(sys.executable)]
    for name in ("bin/python", "Scripts/python.exe"):
        found.append(ROOT / ".venv-model" / name)
    if named := os.environ.get("WORKBOOK_MODEL_PYTHON"):
        found.insert(0, Path(named))
    return [python for python in found if python.exists()]


def python_with_model() -> Path:
    """The first of them that can start it; skips with the last one's reason when none can."""
    reason = ""
    for python in pythons():
        command = [str(python), "-c", CAN_START]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        reason = (done.stdout or done.stderr).strip().rpartition("\n")[2]
        if not reason:
            return python
    pytest.skip(f"no real model here: {reason}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    python, port = python_with_model(), free_port()
    command = [str(python), "-m", "local_model", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        too_late = threading.Timer(START_S, server.kill)
        too_late.start()
        try:
            told = []
            for line in server.stdout:
                told.append(line)
                if line.startswith("listening"):
                    break
            assert told, "it ended without a word"
            assert told[-1].startswith("listening"), "".join(told)
            too_late.cancel()
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            too_late.cancel()
            server.kill()


@pytest.fixture(scope="module")
def live_runs(base_url: str) -> list[TaskRun]:
    async def all_tasks() -> list[TaskRun]:
        async with live_client(deadline_s=CALL_S) as client:
            return await run_tasks(client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_BASE_URL", base_url)
        patch.setenv("LLM_MODEL", "any")
        patch.delenv("LLM_API_KEY", raising=False)
        return go(all_tasks())


def test_the_six_tasks_run_under_the_harness(live_runs: list[TaskRun]) -> None:
    check(live_runs)


def test_no_task_deletes_a_file(live_runs: list[TaskRun]) -> None:
    assert all("delete_file" not in run.tool_runs for run in live_runs)
