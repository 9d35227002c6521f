"""What an import costs, in fresh processes: ``import harness`` against ``import httpx``.

python -m benchmarks.startup [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from benchmarks.common import report

TARGET = 1.3


def import_ms(module: str) -> float:
    """Milliseconds of a process that imports the module, less those of an empty one."""
    return process_ms(f"import {module}") - process_ms("pass")


def process_ms(program: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return (time.perf_counter() - began) * 1000


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(argv).rounds
    times: dict[str, list[float]] = {"httpx": [], "harness": [], "chat_client": []}
    for _ in range(rounds):
        for module, each in times.items():
            each.append(import_ms(module))
    medians = {module: statistics.median(each) for module, each in times.items()}
    print(f"import httpx: {medians['httpx']:.0f} ms")
    ok = report("import harness", medians["harness"] / medians["httpx"], TARGET)
    report("import chat_client", medians["chat_client"] / medians["httpx"], None)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
