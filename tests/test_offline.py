"""Everything runs with the network refused, on a machine that has never been online.

The guard of tests/no_network.py stands before every test of this project, and before every
process that a test starts. Here the main things run in a process of their own that has an empty
home, no cache, and an environment that would lead astray whatever wanted to go online.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from scripted_provider import VOCABULARY, encoding
from tests.support import FIGURES, ROOT

ASTRAY = "http://192.0.2.1:9"  # reserved for documentation: nobody answers there


@functools.cache
def offline() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ,
            "HOME": home,
            "USERPROFILE": home,
            "XDG_CACHE_HOME": home,
            "TIKTOKEN_CACHE_DIR": str(Path(home) / "empty"),
            "HTTP_PROXY": ASTRAY,
            "HTTPS_PROXY": ASTRAY,
            "ALL_PROXY": ASTRAY,
        }
        for name in ("LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY", "NO_PROXY", "no_proxy"):
            environment.pop(name, None)
        child = subprocess.run(
            [sys.executable, "-m", "tests.offline_process"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert child.returncode == 0, child.stderr
        assert not (Path(home) / "empty").exists()
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def test_every_script_runs_without_a_single_connection() -> None:
    found = offline()
    assert found["connections"] == []
    assert found["statuses"] == {
        "plan": "completed",
        "runaway": "max_turns_exceeded",
        "recover": "completed",
        "forbidden": "failed",
        "once": "completed",
        "repeat": "completed",
        "destructive": "completed",
        "scan": "completed",
        "several": "completed",
        "delete_twice": "interrupted",
    }
    assert found["streamed"] == "completed"


def test_the_served_form_needs_loopback_and_nothing_else() -> None:
    plan = next(row for row in FIGURES["rows"] if row["id"] == "plan")
    assert offline()["served"] == plan["expect"]["answer"]


def test_the_guard_was_there() -> None:
    assert offline()["beyond"] == "NetworkRefusedError"


def test_the_vocabulary_is_the_projects_own_whatever_cache_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # to tiktoken: always ask the network
    encoding.cache_clear()
    assert encoding().encode_ordinary("timeout")
    assert os.environ["TIKTOKEN_CACHE_DIR"] == str(VOCABULARY.parent)
