"""A JupyterLab on loopback, for the length of a `with`: its own port, token and directories."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
START_S, POLL_S = 60.0, 0.1
# Neither of these belongs to a page that is tested: news over the network, and their question.
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}


@dataclass(frozen=True)
class Server:
    """A running server; the notebooks that it serves are copies in ``directory``."""

    url: str
    token: str
    directory: Path
    log: Path

    def api(self, method: str, path: str) -> Any:
        """One request to the server's REST API."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            body = response.read()
        return json.loads(body) if body else None

    def kernel_of(self, notebook: str) -> str:
        """The id of the kernel behind a notebook."""
        sessions = self.api("GET", "sessions")
        return next(str(one["kernel"]["id"]) for one in sessions if one["path"] == notebook)

    def end_kernels(self) -> None:
        for session in self.api("GET", "sessions"):
            self.api("DELETE", f"sessions/{session['id']}")


@contextmanager
def serving_lab(home: Path) -> Iterator[Server]:
    """Serve JupyterLab (and Notebook 7 beside it) over a copy of the notebooks."""
    directory = home / "served"
    shutil.copytree(ROOT / "notebooks", directory / "notebooks")
    port, token = _free_port(), secrets.token_hex(16)
    log = home / "server.log"
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": directory,
        "IdentityProvider.token": token,
    }
    command += [f"--{name}={value}" for name, value in options.items()]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(home), stdout=output, stderr=subprocess.STDOUT
        )
    server = Server(f"http://127.0.0.1:{port}", token, directory, log)
    try:
        _wait_until_it_answers(server, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(home: Path) -> dict[str, str]:
    """The environment without the reader's own Jupyter: no setting of theirs, none for them."""
    names = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
    # A person is at the buttons: the scripted reader keeps the patience that it has for one.
    mine = {k: v for k, v in os.environ.items() if k != "WORKBOOK_READER_DELAY_S"}
    return {**mine, **{name: str(home / part) for name, part in names.items()}}


def _wait_until_it_answers(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            server.api("GET", "status")
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                what = "ended" if ended else f"did not answer within {START_S:g} s"
                raise RuntimeError(f"JupyterLab {what}:\n{server.log.read_text()}") from None
        time.sleep(POLL_S)
