"""The six tasks, their recording and its replay: the same harness, the same requests, offline."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import model_runs
import scripted_provider
from chat_client import ChatClient
from model_runs import (
    MAX_TURNS,
    OPTIONS,
    REFUSAL,
    TASKS,
    Recorder,
    Recording,
    TaskRun,
    live_client,
    live_or_recorded,
    load_recording,
    run_task,
    run_tasks,
)
from scripted_provider import Faults, Message, Provider, asks, call, http_error, plan, serving, text
from tests.support import ROOT, go
from tools import record_model

FILES = sorted(
    path.stem
    for path in model_runs.RECORDED.glob("*.json")
    if "results" in json.loads(path.read_text("utf-8"))
)
ENVIRONMENT = {"model": "plan", "date": "2026-01-01"}


def insists(turn: int, tool_text: str) -> Message:
    """Asks for the same deletion, turn after turn."""
    return asks(call(f"c{turn}", "delete_file", {"path": "errors.log"}))


def writes_calls(turn: int, tool_text: str) -> Message:
    """Writes its call as prose, as small models do."""
    if turn == 0:
        return text('{"name": "list_files", "arguments": {}}')
    return text("Three files.")


def recorder(script: str = "plan", faults: Faults | None = None, **options: Any) -> ChatClient:
    own = {one.__name__: one for one in (insists, writes_calls)}
    inner = scripted_provider.transport(own, faults=faults)
    return ChatClient(
        "http://scripted/v1",
        script,
        "a-secret-key",
        transport=Recorder(inner),
        sleep=model_runs._at_once,
        options=OPTIONS,
        **options,
    )


def outcome(one: TaskRun) -> tuple[Any, ...]:
    state = one.state
    return (
        one.task,
        one.tool_runs,
        one.refused,
        one.wall_ms,
        one.exchanges,
        [state.messages, state.status, state.turns, state.error, state.output],
        [state.prompt_tokens, state.completion_tokens],
    )


def round_trip(recording: Recording, directory: Path, monkeypatch: Any) -> Recording:
    monkeypatch.setattr(model_runs, "RECORDED", directory)
    recording.save(directory / "one.json")
    return load_recording("one")


# --- record and replay


@pytest.mark.parametrize("script", ["plan", "several", "runaway", "forbidden", "insists"])
def test_a_replay_goes_as_the_recorded_run_went(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def both() -> None:
        runs = await run_tasks(recorder(script))
        recording = round_trip(Recording.of(runs, ENVIRONMENT), tmp_path, monkeypatch)
        again = await run_tasks(recording.client())
        assert [outcome(one) for one in again] == [outcome(one) for one in runs]

    go(both())


def test_a_replay_gives_the_same_answers_a_second_time() -> None:
    async def twice() -> None:
        recording = Recording.of(await run_tasks(recorder()), ENVIRONMENT)
        client = recording.client()
        first, second = await run_tasks(client), await run_tasks(client)
        assert [outcome(one) for one in first] == [outcome(one) for one in second]

    go(twice())


def test_a_retry_is_recorded_and_replayed() -> None:
    async def both() -> None:
        runs = await run_tasks(recorder(faults={1: http_error(500, times=2)}), TASKS[:1])
        assert [exchange.status for exchange in runs[0].exchanges] == [200, 500, 500, 200, 200]
        again = await run_tasks(Recording.of(runs, ENVIRONMENT).client(), TASKS[:1])
        assert outcome(again[0]) == outcome(runs[0])

    go(both())


def test_calls_in_text_are_replayed_as_they_were_taken() -> None:
    async def both() -> None:
        for taken, turns in ((False, 1), (True, 2)):
            client = recorder("writes_calls", calls_in_text=taken)
            runs = await run_tasks(client, TASKS[:1])
            recording = Recording.of(runs, ENVIRONMENT, calls_in_text=taken)
            (again,) = await run_tasks(recording.client(), TASKS[:1])
            assert runs[0].state.turns == again.state.turns == turns
            assert outcome(again) == outcome(runs[0])

    go(both())


def test_another_request_than_the_recorded_one_is_refused_in_words() -> None:
    async def other() -> TaskRun:
        runs = await run_tasks(recorder(), TASKS[:1])
        return await run_task(TASKS[1], Recording.of(runs, ENVIRONMENT).client())

    one = go(other())
    assert one.state.status == "failed"
    assert "not in the recording" in str(one.state.error)


def test_the_same_messages_with_other_tools_are_another_request() -> None:
    async def other() -> int:
        recording = Recording.of(await run_tasks(recorder(), TASKS[:1]), ENVIRONMENT)
        body = {**recording.request, "messages": recording.results[0]["messages"][:2]}
        async with httpx.AsyncClient(transport=model_runs.Replay(recording)) as http:
            url = "http://recorded/v1/chat/completions"
            assert (await http.post(url, json=body)).status_code == 200
            return (await http.post(url, json={**body, "tools": []})).status_code

    assert go(other()) == 400


def test_a_recording_holds_no_key_and_each_message_once(tmp_path: Path) -> None:
    runs = go(run_tasks(recorder("runaway")))
    Recording.of(runs, ENVIRONMENT).save(tmp_path / "one.json")
    written = (tmp_path / "one.json").read_text("utf-8")
    assert "a-secret-key" not in written
    assert written.count(f'"content": "{TASKS[0]}"') == 1
    assert written.count('"description": "Delete one file.') == 1


def test_a_deletion_is_refused_each_time_and_the_run_goes_on() -> None:
    one = go(run_task(TASKS[0], recorder("insists")))
    assert (one.state.status, one.state.turns) == ("max_turns_exceeded", MAX_TURNS)
    assert (one.tool_runs, one.refused) == ([], MAX_TURNS - 1)
    assert REFUSAL in one.state.messages[3]["content"]


def test_what_cannot_be_recorded_is_refused() -> None:
    one = go(run_task(TASKS[0], recorder()))
    one.exchanges[0].request["messages"][0]["content"] = "something else"
    with pytest.raises(ValueError, match="beginning of the next"):
        Recording.of([one], ENVIRONMENT)
    with pytest.raises(ValueError, match="without an exchange"):
        Recording.of([TaskRun("t", one.state, [], 0, 1, [])], ENVIRONMENT)


def test_a_file_of_another_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runs, "RECORDED", tmp_path)
    (tmp_path / "old.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="record it again"):
        load_recording("old")


# --- live, or not


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def some_recording() -> Recording:
    return Recording.of(go(run_tasks(recorder(), TASKS[:1])), ENVIRONMENT)


@pytest.mark.parametrize(
    ("base_url", "words"),
    [
        ("", "LLM_BASE_URL is not set"),
        ("http://127.0.0.1:9/v1", "connect"),
        ("127.0.0.1:9", "http"),
        ("ftp://127.0.0.1/v1", "protocol"),
    ],
)
def test_without_a_model_it_is_the_recording_and_says_why(
    base_url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_model(monkeypatch)
    monkeypatch.setenv("LLM_BASE_URL", base_url)
    client, which = go(live_or_recorded(some_recording()))
    assert which.startswith("RECORDED on 2026-01-01, not live: ")
    assert words in which
    assert go(run_task(TASKS[0], client)).state.status == "completed"


def test_with_a_model_it_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model(monkeypatch)
    recording = some_recording()

    async def live(base_url: str) -> tuple[ChatClient, str, TaskRun]:
        client, which = await live_or_recorded(recording)
        async with client:
            return client, which, await run_task(TASKS[0], client)

    with serving(Provider(scripts={"plan": plan})) as base_url:
        monkeypatch.setenv("LLM_BASE_URL", base_url)
        client, which, one = go(live(base_url))
    assert isinstance(client.transport, Recorder)
    # LLM_MODEL is not set: the first that the endpoint serves.
    assert which == f"LIVE: plan at {base_url}"
    assert (one.state.status, one.state.turns) == ("completed", 3)
    assert [exchange.status for exchange in one.exchanges] == [200, 200, 200]


def test_a_live_client_asks_for_what_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    no_model(monkeypatch)
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("LLM_MODEL", "plan")
    inner = scripted_provider.transport()
    one = go(run_task(TASKS[0], live_client(transport=Recorder(inner))))
    assert OPTIONS.items() <= one.exchanges[0].request.items()


# --- the script that records


def test_the_script_writes_what_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_model(monkeypatch)
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"weights")
    with serving(Provider()) as base_url:
        monkeypatch.setenv("LLM_BASE_URL", base_url)
        monkeypatch.setenv("LLM_MODEL", "plan")
        arguments = ["--out", str(tmp_path / "one.json"), "--model-file", str(weights)]
        assert record_model.main([*arguments, "--known", "threads=2"]) == 0
    assert "wrote" in capsys.readouterr().out
    monkeypatch.setattr(model_runs, "RECORDED", tmp_path)
    recording = load_recording("one")
    assert recording.environment["model_file"] == "weights.gguf"
    assert recording.environment["model_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert recording.environment["threads"] == "2"
    assert len(go(run_tasks(recording.client()))) == len(TASKS)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (
            {"build_info": "b1", "chat_template": "x", "default_generation_settings": {}},
            {"server", "template_sha256"},
        ),
        ({"something": "else"}, set()),
        ([], set()),
    ],
)
def test_what_a_server_says_of_itself(
    told: Any, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpx, "get", lambda url, **options: httpx.Response(200, json=told))
    assert record_model.told_by_server("http://127.0.0.1:9/v1").keys() == found


def test_the_script_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_model(monkeypatch)
    with pytest.raises(SystemExit):
        record_model.main(["--out", str(tmp_path / "one.json")])
    assert "LLM_BASE_URL and LLM_MODEL not set" in capsys.readouterr().err


# --- the recordings of the book


@pytest.mark.parametrize("name", FILES)
def test_a_recording_of_the_book_is_what_the_harness_does_today(name: str) -> None:
    """Its replay sends the recorded requests and comes to the recorded results."""
    recording = load_recording(name)
    assert [result["task"] for result in recording.results] == list(TASKS)
    runs = go(run_tasks(recording.client()))
    environment, in_text = recording.environment, recording.calls_in_text
    assert Recording.of(runs, environment, calls_in_text=in_text) == recording


@pytest.mark.parametrize("name", FILES)
def test_a_recording_of_the_book_says_how_it_was_made(name: str) -> None:
    path = model_runs.RECORDED / f"{name}.json"
    assert path.stat().st_size < record_model.LARGEST_FILE
    written = path.read_text("utf-8")
    assert str(ROOT) not in written
    assert "127.0.0.1" not in written
    environment = load_recording(name).environment
    said = {"model", "model_sha256", "server", "template_sha256", "threads", "cache"}
    assert said | {"date", "harness", "temperature", "seed", "max_tokens"} <= environment.keys()
    assert len(environment["model_sha256"]) == len(environment["template_sha256"]) == 64
