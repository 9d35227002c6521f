"""Run the six tasks against a real model and write down everything that went over the wire.

    LLM_BASE_URL=http://127.0.0.1:8080/v1 LLM_MODEL=NAME \\
        python -m tools.record_model --out data/recorded/NAME.json \\
        --model-file NAME.gguf --template chat.jinja --known threads=2 --known cache=off

LLM_API_KEY is sent where one is needed, and never written. A llama.cpp server tells its build and
its template itself; what only you know of the model and its server, add with ``--known``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from model_runs import OPTIONS, Recording, TaskRun, live_client, run_tasks
from workbook import print_table

LARGEST_FILE = 300_000


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def told_by_server(base_url: str) -> dict[str, Any]:
    """What a llama.cpp server says of itself; nothing, where another server answers."""
    root = base_url.rstrip("/").removesuffix("/v1")
    try:
        told = httpx.get(f"{root}/props", timeout=10, trust_env=False).json()
        settings = told.get("default_generation_settings", {})
        known = {
            "server": f"llama.cpp {told['build_info']}",
            "context": settings.get("n_ctx"),
            "template_sha256": hashlib.sha256(told["chat_template"].encode()).hexdigest(),
        }
    except (httpx.HTTPError, ValueError, KeyError, AttributeError):
        return {}
    return {name: value for name, value in known.items() if value is not None}


def environment(options: argparse.Namespace) -> dict[str, Any]:
    """Whatever bears on the answers, as far as it is known. No path, no host, no key."""
    found: dict[str, Any] = {"model": os.environ.get("LLM_MODEL")}
    if options.model_file:
        found |= {"model_file": options.model_file.name}
        found |= {"model_sha256": sha256_of(options.model_file)}
    found |= told_by_server(os.environ["LLM_BASE_URL"])
    if options.template:
        found |= {"template": options.template.name}
    found |= dict(options.known)
    return {
        **found,
        **OPTIONS,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "harness": metadata.version("five-exits-workbook"),
        "date": datetime.now(UTC).date().isoformat(),
    }


async def recorded(options: argparse.Namespace) -> Recording:
    in_text: bool = options.calls_in_text
    async with live_client(calls_in_text=in_text) as client:
        runs = await run_tasks(client)
    print_table([row_of(one) for one in runs])
    return Recording.of(runs, environment(options), calls_in_text=in_text)


def row_of(one: TaskRun) -> dict[str, Any]:
    return {
        "task": one.task,
        "turns": one.state.turns,
        "tool runs": len(one.tool_runs),
        "refused": one.refused,
        "wall ms": one.wall_ms,
        "status": one.state.status,
        "answer": (one.answer or one.state.error or "").replace("\n", " / ")[:80],
    }


def known_fact(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.record_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--model-file", type=Path, help="the weights; their SHA-256 is written")
    parser.add_argument("--template", type=Path, help="the chat template that the server was given")
    parser.add_argument("--known", type=known_fact, action="append", default=[], metavar="NAME=X")
    parser.add_argument(
        "--calls-in-text", action="store_true", help="take a call that the model wrote as prose"
    )
    options = parser.parse_args(arguments)
    try:
        recording = asyncio.run(recorded(options))
    except ValueError as problem:
        parser.error(str(problem))
    recording.save(options.out)
    size = options.out.stat().st_size
    print(f"wrote {options.out}: {size:,} bytes")
    if size > LARGEST_FILE:
        print(f"That is more than {LARGEST_FILE:,}: too large for the repository.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
