"""The four tools of the book, over a few log files.

They work on a copy of ``data/logs`` in a temporary directory, so that a deletion in a lesson
never touches the repository.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from harness import PermanentToolError, Tool, ToolContext

LOGS = Path(__file__).with_name("data") / "logs"
ARCHIVE_FILES, SCAN_STEPS, STEP_S = 1200, 6, 0.5

_PATH = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
}


def workspace() -> Path:
    """A fresh copy of the log files, in a temporary directory that goes when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="logs-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(shutil.copytree(LOGS, directory / "logs"))


def catalogue(
    directory: Path | None = None,
    *,
    forbidden: type[Exception] = PermanentToolError,
    step_s: float = STEP_S,
) -> list[Tool]:
    """list_files, read_file, delete_file and scan_archive over ``directory``.

    ``forbidden`` is what a path outside the directory raises: by default the error that stops a
    run, since no message can make such a path readable. ``step_s`` is how long each of the six
    steps of a scan takes, in seconds.
    """
    root = (directory or workspace()).resolve()

    def find(path: str) -> Path:
        """The file of that name. A link or a '..' that leads outside is not followed."""
        try:
            file = (root / path).resolve()
        except (OSError, ValueError, RuntimeError):  # a loop of links (until Python 3.12), a NUL
            raise forbidden(f"permission denied: {path}") from None
        if not file.is_relative_to(root) or file.is_symlink():  # a loop (from Python 3.13)
            raise forbidden(f"permission denied: {path}")
        if not file.is_file():
            raise FileNotFoundError(f"no such file: {path}. Call list_files to see what exists.")
        return file

    async def list_files(args: dict[str, Any], ctx: ToolContext) -> str:
        names = sorted(file.name for file in root.iterdir() if file.is_file())
        return json.dumps(names, separators=(",", ":"))

    async def read_file(args: dict[str, Any], ctx: ToolContext) -> str:
        return find(args["path"]).read_text("utf-8", "replace")

    async def delete_file(args: dict[str, Any], ctx: ToolContext) -> str:
        find(args["path"])
        (root / args["path"]).unlink()  # of a link, the link itself
        return f"deleted {args['path']}"

    async def scan_archive(args: dict[str, Any], ctx: ToolContext) -> str:
        for step in range(1, SCAN_STEPS + 1):
            await asyncio.sleep(step_s)
            done = ARCHIVE_FILES * step // SCAN_STEPS
            ctx.progress(f"scanned {done:,} of {ARCHIVE_FILES:,} files")
        return f"{ARCHIVE_FILES:,} files scanned, 1 mentions a timeout: errors.log"

    nothing: dict[str, Any] = {"type": "object", "properties": {}}
    return [
        Tool(
            "list_files",
            "List the names of the files in the directory.",
            nothing,
            list_files,
            read_only=True,
        ),
        Tool(
            "read_file",
            "Return the whole text of one file, by name.",
            _PATH,
            read_file,
            read_only=True,
        ),
        Tool(
            "delete_file",
            "Delete one file. This cannot be undone.",
            _PATH,
            delete_file,
            needs_approval=True,
        ),
        Tool(
            "scan_archive",
            "Scan every file in the archive. Slow: takes several seconds.",
            nothing,
            scan_archive,
            read_only=True,
        ),
    ]
