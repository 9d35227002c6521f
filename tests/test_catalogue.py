"""The four tools: what they return, what they refuse, and that the repository's files stay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import catalogue as module
from catalogue import LOGS, catalogue, workspace
from harness import AbortSignal, PermanentToolError, Tool, ToolContext, approve, new_run, run
from tests.support import FIGURES, ROOT, go
from workbook import SYSTEM, TASK, client_for


@pytest.fixture(autouse=True)
def _the_repositorys_logs_stay() -> Iterator[None]:
    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in LOGS.iterdir()}

    before = contents()
    yield
    assert contents() == before


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory of log files with a secret beside it."""
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    directory = tmp_path / "logs"
    directory.mkdir()
    for path in LOGS.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return directory


def context(labels: list[str] | None = None, signal: AbortSignal | None = None) -> ToolContext:
    labels = [] if labels is None else labels
    return ToolContext(signal or AbortSignal(), labels.append, "run", "c1", "run:c1")


def use(name: str, directory: Path, **args: Any) -> Any:
    """What a tool of a catalogue over this directory returns."""
    tools = {tool.name: tool for tool in catalogue(directory, step_s=0)}
    return go(tools[name].run(args, context()))


# --- what they return -----------------------------------------------------------------------------


def test_list_files(logs: Path) -> None:
    assert use("list_files", logs) == FIGURES["inputs"]["list_files_result"]
    (logs / "folder").mkdir()
    (logs / "a.log").touch()
    assert json.loads(use("list_files", logs)) == ["a.log", "access.log", "errors.log", "notes.txt"]


def test_read_file(logs: Path) -> None:
    for name in ("errors.log", "notes.txt"):
        assert use("read_file", logs, path=name) == FIGURES["inputs"]["files"][name]
    (logs / "folder").mkdir()
    (logs / "folder" / "inner.log").write_text("inner", encoding="utf-8")
    assert use("read_file", logs, path="folder/inner.log") == "inner"


def test_bytes_that_are_no_text_are_read_as_replacement_characters(logs: Path) -> None:
    (logs / "raw.log").write_bytes(b"ok \xff\xfe end")
    assert use("read_file", logs, path="raw.log") == "ok \ufffd\ufffd end"


def test_delete_file(logs: Path) -> None:
    assert use("delete_file", logs, path="access.log") == "deleted access.log"
    assert sorted(path.name for path in logs.iterdir()) == ["errors.log", "notes.txt"]


@pytest.mark.parametrize("name", ["read_file", "delete_file"])
@pytest.mark.parametrize("path", ["timeout.log", "folder", "", ".", "errors.log/more"])
def test_a_file_that_does_not_exist_is_an_error_that_says_what_to_do(
    name: str, path: str, logs: Path
) -> None:
    (logs / "folder").mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        use(name, logs, path=path)
    assert str(caught.value) == FIGURES["inputs"]["missing_file_error"].format(path=path)


def test_which_tools_only_read_and_which_one_asks() -> None:
    tools = {tool.name: tool for tool in catalogue()}
    assert [name for name in tools if tools[name].read_only] == [
        "list_files",
        "read_file",
        "scan_archive",
    ]
    asking = [name for name in tools if tools[name].wants_approval({"path": "x"})]
    assert asking == ["delete_file"]


# --- what they refuse -----------------------------------------------------------------------------

OUTSIDE = [
    "/etc/shadow",
    "../secret.txt",
    "..",
    "folder/../../secret.txt",
    "../logs-of-another/errors.log",
    "../missing.txt",
    "link",
    "folder_link/secret.txt",
    "loop",
    "nul\0byte",
]


@pytest.fixture
def trapped(logs: Path) -> Path:
    """The directory of log files, with links that lead outside."""
    (logs / "folder").mkdir()
    try:
        (logs / "link").symlink_to(logs.parent / "secret.txt")
        (logs / "folder_link").symlink_to(logs.parent, target_is_directory=True)
        (logs / "loop").symlink_to(logs / "loop")
    except OSError:
        pytest.skip("this account may not make links")
    return logs


@pytest.mark.parametrize("name", ["read_file", "delete_file"])
@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_outside_is_permission_denied_for_good(name: str, path: str, trapped: Path) -> None:
    with pytest.raises(PermanentToolError) as caught:
        use(name, trapped, path=path)
    assert str(caught.value) == f"permission denied: {path}"
    assert (trapped.parent / "secret.txt").read_text(encoding="utf-8") == "secret"
    assert (trapped / "link").is_symlink()


def test_an_absolute_path_outside_is_denied_whether_the_file_exists_or_not(logs: Path) -> None:
    for name in ("secret.txt", "missing.txt"):
        with pytest.raises(PermanentToolError):
            use("read_file", logs, path=str(logs.parent / name))


def test_an_absolute_path_inside_is_fine(logs: Path) -> None:
    assert use("read_file", logs, path=str(logs / "notes.txt")).startswith("Remember")


def test_a_link_inside_is_read_through_and_deleted_itself(trapped: Path) -> None:
    alias = trapped / "alias.log"
    alias.symlink_to(trapped / "errors.log")
    assert "timeout" in use("read_file", trapped, path="alias.log")
    use("delete_file", trapped, path="alias.log")
    assert not alias.is_symlink()
    assert (trapped / "errors.log").exists()


def test_what_a_path_outside_raises_can_be_chosen(logs: Path) -> None:
    tools = {tool.name: tool for tool in catalogue(logs, forbidden=PermissionError)}
    path = FIGURES["inputs"]["forbidden_call"]["path"]
    with pytest.raises(PermissionError) as caught:
        go(tools["read_file"].run({"path": path}, context()))
    assert str(caught.value) == FIGURES["inputs"]["forbidden_error"].format(path=path)


def test_in_a_run_a_forbidden_path_ends_it_and_a_missing_file_does_not() -> None:
    forbidden = go(run(new_run(SYSTEM, TASK), catalogue(), client_for("forbidden")))
    assert (forbidden.status, forbidden.turns) == ("failed", 1)
    assert forbidden.error == "permission denied: /etc/shadow"
    missing = go(run(new_run(SYSTEM, TASK), catalogue(), client_for("recover")))
    assert (missing.status, missing.turns) == ("completed", 4)


# --- copies ---------------------------------------------------------------------------------------


def test_a_deletion_never_touches_the_repository() -> None:
    """Nor another catalogue: each works on a copy of its own."""
    tools, others = catalogue(), catalogue()
    state = new_run(SYSTEM, TASK)
    go(run(state, tools, client_for("destructive")))
    approve(state, "c2")
    go(run(state, tools, client_for("destructive")))
    assert state.output == "Deleted access.log to free space."
    assert json.loads(go(tools[0].run({}, context()))) == ["errors.log", "notes.txt"]
    assert len(json.loads(go(others[0].run({}, context())))) == 3


def test_a_workspace_is_a_fresh_copy_elsewhere() -> None:
    first, second = workspace(), workspace()
    assert first != second
    for directory in (first, second):
        assert not directory.resolve().is_relative_to(ROOT)
        assert {path.name for path in directory.iterdir()} == {p.name for p in LOGS.iterdir()}


def test_a_workspace_goes_when_its_process_ends() -> None:
    code = "from catalogue import workspace; print(workspace())"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    directory = Path(child.stdout.strip())
    assert directory.name == "logs"
    assert not directory.parent.exists()


# --- the slow one ---------------------------------------------------------------------------------


def tool_named(name: str, **options: Any) -> Tool:
    return next(tool for tool in catalogue(**options) if tool.name == name)


def test_the_scan_reports_each_of_its_six_steps_and_rests_before_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    monkeypatch.setattr("catalogue.asyncio.sleep", sleep)
    labels: list[str] = []
    result = go(tool_named("scan_archive").run({}, context(labels)))
    assert labels == [
        "scanned 200 of 1,200 files",
        "scanned 400 of 1,200 files",
        "scanned 600 of 1,200 files",
        "scanned 800 of 1,200 files",
        "scanned 1,000 of 1,200 files",
        "scanned 1,200 of 1,200 files",
    ]
    assert naps == [0.5] * 6
    assert result == "1,200 files scanned, 1 mentions a timeout: errors.log"


def test_a_stop_ends_the_scan_between_two_steps() -> None:
    signal = AbortSignal()
    labels: list[str] = []

    def stop_at_the_second(label: str) -> None:
        labels.append(label)
        if len(labels) == 2:
            signal.abort("enough")

    state = new_run(SYSTEM, TASK)
    scan = tool_named("scan_archive", step_s=0.001)
    go(run(state, [scan], client_for("scan"), signal=signal, on_progress=stop_at_the_second))
    assert labels == ["scanned 200 of 1,200 files", "scanned 400 of 1,200 files"]
    assert state.interruption == {"type": "cancelled", "reason": "enough"}
    assert state.turns == 1


def test_the_measures_of_the_scan_are_the_published_ones() -> None:
    steps, step_ms = module.SCAN_STEPS, module.STEP_S * 1000
    per_step = module.ARCHIVE_FILES // steps
    said = f"{steps} steps of {step_ms:.0f} ms, {per_step} of {module.ARCHIVE_FILES} files each"
    assert said == FIGURES["stop"]["progress"]


def test_the_names_of_the_files_are_sorted_whatever_the_file_system_says(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = sorted((path.name for path in logs.iterdir()), reverse=True)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / name for name in listed]))
    assert use("list_files", logs) == FIGURES["inputs"]["list_files_result"]
