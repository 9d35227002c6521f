"""Six tasks for a real model: run them live, record what went over the wire, replay it.

The harness, the tools and the client are the same in every case. What differs is the httpx
transport underneath: a :class:`Recorder` passes each request on to a server and keeps it with its
answer; a :class:`Replay` gives the kept answers again, offline.

    client = live_client()                     # LLM_BASE_URL, LLM_MODEL, LLM_API_KEY
    client = load_recording("smollm2-135m-instruct").client()
    runs = await run_tasks(client)

``python -m tools.record_model`` writes a recording.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from catalogue import catalogue
from chat_client import RETRY_HEADER, ChatClient
from harness import Limits, RunState, new_run, reject, run, waiting_calls
from workbook import SYSTEM

RECORDED = Path(__file__).with_name("data") / "recorded"
FORMAT = 1

TASKS = (
    "Which file mentions a timeout?",
    "How many files are in the directory?",
    "Read notes.txt and tell me what it says.",
    "List the files and then read each one.",
    "Which file is the largest?",
    "Is there a file about rotating logs?",
)
MAX_TURNS = 8
# As repeatable as a model gets: the likeliest token each time, and an end to every answer.
OPTIONS: Mapping[str, Any] = {"temperature": 0, "seed": 0, "max_tokens": 200}
CALL_TIMEOUT_S = 120.0
# None of the tasks asks for a deletion, so the person at the buttons says no, each time.
REFUSAL = "Nobody asked for a deletion. Answer the question."


# --- one task, and all of them ------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """One request and its answer: the body as it came, and how long it took to come."""

    request: dict[str, Any]
    status: int
    reply: str
    ms: int


@dataclass(frozen=True)
class TaskRun:
    """How one task went. ``refused`` counts the calls that a person did not allow."""

    task: str
    state: RunState
    tool_runs: list[str]
    refused: int
    wall_ms: int
    exchanges: list[Exchange]

    @property
    def answer(self) -> str:
        return self.state.output


async def run_task(task: str, client: ChatClient) -> TaskRun:
    """A run of the harness; calls that wait for a person are refused, and it goes on."""
    wire: Recorder | Replay = client.transport
    events: list[dict[str, Any]] = []
    state, tools = new_run(SYSTEM, task), catalogue(step_s=0.0)
    before, refused, began = len(wire.exchanges), 0, time.perf_counter()
    while state.status == "running" or waiting_calls(state):
        for call in waiting_calls(state):
            reject(state, call["call_id"], REFUSAL)
            refused += 1
        limits = Limits(max_turns=MAX_TURNS)
        await run(state, tools, client, limits=limits, trace=events.append)
    wall_ms = round((time.perf_counter() - began) * 1000)
    started = [event["toolName"] for event in events if event["type"] == "tool_start"]
    # A replay takes no time worth telling; what counts is how long the model took.
    wall_ms = wire.recorded_ms.get(task, wall_ms)
    return TaskRun(task, state, started, refused, wall_ms, wire.exchanges[before:])


async def run_tasks(client: ChatClient, tasks: Sequence[str] = TASKS) -> list[TaskRun]:
    """Every task, one after another, each with files of its own."""
    return [await run_task(task, client) for task in tasks]


# --- live ---------------------------------------------------------------------------------------


class Recorder(httpx.AsyncBaseTransport):
    """Passes each request on, and keeps it with its answer. Headers, and so keys, are not kept."""

    recorded_ms: Mapping[str, int] = {}

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None) -> None:
        self._inner = inner
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._inner is None:
            # Loading the certificates takes a while, and plain HTTP needs none.
            self._inner = httpx.AsyncHTTPTransport(verify=request.url.scheme == "https")
        began = time.perf_counter()
        response = await self._inner.handle_async_request(request)
        body = await response.aread()
        ms = round((time.perf_counter() - began) * 1000)
        sent = json.loads(request.content) if request.content else {}
        self.exchanges.append(Exchange(sent, response.status_code, response.text, ms))
        return httpx.Response(response.status_code, headers=_kept(response.headers), content=body)

    async def aclose(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            await inner.aclose()


def _kept(headers: httpx.Headers) -> dict[str, str]:
    """The headers that the client reads; the others described bytes that are decoded now."""
    return {name: headers[name] for name in ("content-type", "retry-after") if name in headers}


def live_client(model: str = "", **options: Any) -> ChatClient:
    """A client of the endpoint that LLM_BASE_URL, LLM_MODEL and LLM_API_KEY name."""
    chosen = {"transport": Recorder(), "timeout_s": CALL_TIMEOUT_S, "options": OPTIONS, **options}
    if not model:
        return ChatClient.from_env(**chosen)
    base_url, key = os.environ["LLM_BASE_URL"], os.environ.get("LLM_API_KEY")
    return ChatClient(base_url, model, key, **chosen)


async def served_models(base_url: str, api_key: str | None = None) -> list[str]:
    """The names of the models that an endpoint serves. Raises httpx.HTTPError without one."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else None
    local = base_url.startswith("http://")
    async with httpx.AsyncClient(timeout=5, verify=not local, trust_env=not local) as http:
        response = await http.get(f"{base_url.rstrip('/')}/models", headers=headers)
        response.raise_for_status()
    try:
        return [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError):  # it answers, if not to this question
        return []


async def live_or_recorded(recording: Recording) -> tuple[ChatClient, str]:
    """A client of the endpoint that LLM_BASE_URL names, else of the recording; and which it is."""
    base_url, key = os.environ.get("LLM_BASE_URL", ""), os.environ.get("LLM_API_KEY")
    try:
        if not base_url:
            raise ValueError("LLM_BASE_URL is not set")
        served = await served_models(base_url, key)
        client = live_client(os.environ.get("LLM_MODEL") or next(iter(served), ""))
    except (ValueError, httpx.HTTPError, httpx.InvalidURL) as problem:
        why = str(problem) or type(problem).__name__
        return recording.client(), f"RECORDED on {recording.environment['date']}, not live: {why}"
    return client, f"LIVE: {client.model} at {client.base_url}"


# --- recorded -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """The six tasks as one model did them, and all that is known of how it was run.

    ``request`` is what all requests share. ``results`` has one entry a task, as the file holds
    it: its outcome, and the exchanges.
    """

    environment: dict[str, Any]
    calls_in_text: bool
    request: dict[str, Any]
    results: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        runs: Sequence[TaskRun],
        environment: Mapping[str, Any],
        *,
        calls_in_text: bool = False,
    ) -> Recording:
        """What these runs sent, got and came to. Raises ValueError for runs that sent nothing.

        A request repeats all messages before it, so the messages of a task are stored once, and
        of each request only how many of them it held. What all requests share is stored once too.
        """
        if not all(one.exchanges for one in runs):
            raise ValueError("a task without an exchange cannot be recorded")
        shared = _without_messages(runs[0].exchanges[0].request)
        results = [_result(one, shared) for one in runs]
        return cls(dict(environment), calls_in_text, shared, results)

    def client(self) -> ChatClient:
        """A client to which this recording answers, in no time and without a network."""
        return ChatClient(
            "http://recorded/v1",
            self.request["model"],
            transport=Replay(self),
            sleep=_at_once,
            options={name: self.request[name] for name in OPTIONS if name in self.request},
            calls_in_text=self.calls_in_text,
        )

    def save(self, path: Path) -> None:
        whole = {"format": FORMAT, **vars(self)}
        path.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", "utf-8")


def load_recording(name: str) -> Recording:
    """A recording in ``data/recorded``. Raises ValueError for a format that is not this one."""
    whole = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    if whole.pop("format", None) != FORMAT:
        raise ValueError(f"{name}.json is no recording of format {FORMAT}: record it again")
    return Recording(**whole)


def _without_messages(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != "messages"}


def _result(one: TaskRun, shared: Mapping[str, Any]) -> dict[str, Any]:
    messages = one.exchanges[-1].request["messages"]
    exchanges = []
    for exchange in one.exchanges:
        sent = exchange.request["messages"]
        if sent != messages[: len(sent)] or _without_messages(exchange.request) != shared:
            raise ValueError("the requests of a task are not each the beginning of the next")
        exchanges.append(
            {
                "messages": len(sent),
                "status": exchange.status,
                "ms": exchange.ms,
                "reply": exchange.reply,
            }
        )
    state = one.state
    return {
        "task": one.task,
        "status": state.status,
        "error": state.error,
        "turns": state.turns,
        "tool_runs": one.tool_runs,
        "refused": one.refused,
        "wall_ms": one.wall_ms,
        "answer": one.answer,
        "usage": {
            "prompt_tokens": state.prompt_tokens,
            "completion_tokens": state.completion_tokens,
        },
        "messages": messages,
        "exchanges": exchanges,
    }


@dataclass
class Replay(httpx.AsyncBaseTransport):
    """Answers each request as it was answered when it was recorded, and any other one with a 400.

    It keeps no place in a story: the same request gets the same answer, whenever it comes. Which
    attempt a request is, it learns from the header that the client sends with each retry.
    """

    recording: Recording
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def recorded_ms(self) -> dict[str, int]:
        return {result["task"]: result["wall_ms"] for result in self.recording.results}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sent, attempt = json.loads(request.content), int(request.headers.get(RETRY_HEADER, 0))
        answers = self._answers_to(sent)
        if not answers:
            words = (
                "this request is not in the recording: the harness, the tools or the task have "
                "changed since. Record again: python -m tools.record_model"
            )
            return httpx.Response(400, json={"error": {"message": words}})
        kept = answers[min(attempt, len(answers) - 1)]
        exchange = Exchange(sent, kept["status"], kept["reply"], kept["ms"])
        self.exchanges.append(exchange)
        headers = {"content-type": "application/json"}
        return httpx.Response(kept["status"], headers=headers, text=kept["reply"])

    def _answers_to(self, sent: Mapping[str, Any]) -> list[dict[str, Any]]:
        if _without_messages(sent) != self.recording.request:
            return []
        return [
            exchange
            for result in self.recording.results
            for exchange in result["exchanges"]
            if result["messages"][: exchange["messages"]] == sent["messages"]
        ]


async def _at_once(seconds: float) -> None:
    """A retry's wait, in a replay."""
