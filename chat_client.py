"""One POST to chat/completions: retries where they help, and one shape for every dialect.

Endpoints of this kind agree on the request and differ in the details of the answer. What leaves
here is a :class:`Reply`, whatever came; what cannot become one is a :class:`ProviderError` whose
text says what happened. Retries happen here and leave no mark on the transcript.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import httpx

Message = dict[str, Any]
Delta = Callable[[str], None]

# The header with which the official openai clients count their retries.
RETRY_HEADER = "x-stainless-retry-count"
# 429 also means that there is no money left; waiting does not bring any.
QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 8.0
# A provider's own words about an error, at most.
MAX_ERROR_CHARS = 500

# US dollars per million tokens: in, out, and cached where cached input has a price of its own.
# "book" is the price of this workbook's examples. Add the models that you pay for.
PRICES: dict[str, dict[str, float]] = {
    "book": {"in": 2.0, "out": 12.0},
    "free": {"in": 0.0, "out": 0.0},
}


class ProviderError(Exception):
    """No answer, for good. ``status`` is the HTTP status where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _TransientError(Exception):
    """No answer this time; ``wait_s`` is what the provider asks for before the next attempt."""

    def __init__(
        self, message: str, status: int | None = None, wait_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.wait_s = wait_s


@dataclass(frozen=True)
class Reply:
    """One answer. ``message`` has content and, where there are any, ``tool_calls``.

    Each call has ``id`` (possibly empty), ``type`` and ``function`` with ``name`` and
    ``arguments``, a string. ``usage`` has prompt_tokens, completion_tokens, cached_tokens; None
    when the provider did not say. ``price`` is the client's.
    """

    message: Message
    finish_reason: str
    refusal: str | None = None
    usage: dict[str, int] | None = None
    price: Mapping[str, float] | None = None


def price_for(model: str, prices: Mapping[str, Mapping[str, float]] = PRICES) -> dict[str, float]:
    """The price of a model. Raises ValueError that names the known ones."""
    if model not in prices:
        raise ValueError(
            f"no price for model {model!r}; known: {', '.join(sorted(prices))}. Add it to "
            'chat_client.PRICES, or give price={"in": ..., "out": ...} per million tokens'
        )
    return dict(prices[model])


class ChatClient:
    """A model behind a chat-completions endpoint.

    ``timeout_s`` bounds each wait for the network, ``deadline_s`` one call with all its retries,
    even when the body drips. ``options`` join the request body (temperature, max_tokens, ...); one
    that is None takes its field out of the body. ``calls_in_text`` also recognises a call that a
    model wrote as JSON into its prose. ``empty_content`` is what this endpoint takes as content
    beside tool_calls. ``sleep`` and ``clock`` (seconds since the epoch) can be replaced in tests.
    Close with ``aclose`` or use ``async with``. Raises ValueError for a base_url, a key, a price
    or a limit that cannot work.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        price: Mapping[str, float] | None = None,
        timeout_s: float = 60.0,
        deadline_s: float = 300.0,
        max_retries: int = 3,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
        options: Mapping[str, Any] | None = None,
        calls_in_text: bool = False,
        empty_content: Literal[None, ""] = None,
    ) -> None:
        if price is not None:
            _check_price(price)
        if not (timeout_s > 0 and deadline_s > 0 and max_retries >= 0):
            raise ValueError("timeout_s and deadline_s must be above 0, max_retries 0 or more")
        self.base_url = _checked_url(base_url)
        # As an object: httpx would read a string again with every request.
        self._url = httpx.URL(f"{self.base_url}/chat/completions")
        self.model = model
        self.price = price
        self.deadline_s = deadline_s
        self.max_retries = max_retries
        self._key = _checked_key(api_key)
        self._sleep = sleep
        self._clock = clock
        self._options = dict(options or {})
        self._calls_in_text = calls_in_text
        self._empty_content = empty_content
        self.transport: Any = transport
        self._timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """The endpoint that LLM_BASE_URL, LLM_MODEL and LLM_API_KEY name."""
        missing = [name for name in ("LLM_BASE_URL", "LLM_MODEL") if not os.environ.get(name)]
        if missing:
            raise ValueError(
                f"{' and '.join(missing)} not set. For a local server, for example: "
                "LLM_BASE_URL=http://127.0.0.1:8080/v1 LLM_MODEL=local"
            )
        key = os.environ.get("LLM_API_KEY")
        return cls(os.environ["LLM_BASE_URL"], os.environ["LLM_MODEL"], key, **options)

    def __repr__(self) -> str:
        return f"ChatClient({self.base_url!r}, {self.model!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. The client opens new ones if it is used again."""
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    # One call of the model, with its retries.

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        on_delta: Delta | None = None,
    ) -> Reply:
        """Ask for the next message. Raises ProviderError when there is none to be had.

        With ``on_delta`` the answer is streamed and each piece of text is handed over as it
        comes; an empty piece means that this attempt failed and the text begins again.
        Cancelling the task cancels the request, and the wait for a retry.
        """
        body = self._body(messages, tools, stream=on_delta is not None)
        names = {tool["function"]["name"] for tool in tools} if self._calls_in_text else set()
        deadline = asyncio.timeout(self.deadline_s)
        try:
            async with deadline:
                answer = await self._with_retries(body, on_delta)
        except TimeoutError:
            if not deadline.expired():  # somebody else's
                raise
            raise self._final(f"no answer within {self.deadline_s:g} s") from None
        return normalise(answer, self.price, names)

    async def _with_retries(self, body: bytes, on_delta: Delta | None) -> dict[str, Any]:
        attempt = 0
        while True:
            try:
                return await self._attempt(body, attempt, on_delta)
            except _TransientError as problem:
                if attempt == self.max_retries:
                    tried = f" ({attempt + 1} attempts)" if attempt else ""
                    raise self._final(f"{problem}{tried}", problem.status) from None
                wait_s = _backoff(attempt) if problem.wait_s is None else problem.wait_s
                if wait_s > self.deadline_s:
                    why = f"{problem}; it asks to wait {wait_s:g} s, more than the deadline"
                    raise self._final(why, problem.status) from None
            if on_delta is not None:
                on_delta("")
            await self._sleep(wait_s)
            attempt += 1

    async def _attempt(self, body: bytes, attempt: int, on_delta: Delta | None) -> dict[str, Any]:
        """The body of one good answer, streamed or whole, in the shape of a whole one."""
        headers = {RETRY_HEADER: str(attempt)} if attempt else None
        http = self._connected()
        request = http.build_request("POST", self._url, content=body, headers=headers)
        try:
            response = await self._sent(http, request)
            try:
                return await self._read(response, on_delta)
            finally:
                await response.aclose()
        except httpx.HTTPError as problem:  # these often come without a text
            raise _TransientError(str(problem) or type(problem).__name__) from None

    async def _sent(self, http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        try:
            return await http.send(request, stream=True)
        except httpx.HTTPError:
            raise
        except Exception as problem:  # of a transport of the caller's own; it saw the key
            raise self._final(f"{type(problem).__name__}: {problem}") from None

    async def _read(self, response: httpx.Response, on_delta: Delta | None) -> dict[str, Any]:
        if response.status_code != 200:
            await response.aread()
            self._refuse(response)
        is_json = "json" in response.headers.get("content-type", "")
        if on_delta is not None and not is_json:
            return await self._streamed(response, on_delta)
        answer = self._checked(_json(await response.aread()))
        text = _content_text(answer["choices"][0]["message"].get("content"))
        if on_delta is not None and text:  # asked to stream, it answered whole
            on_delta(text)
        return answer

    def _connected(self) -> httpx.AsyncClient:
        """The HTTP client of this event loop: connections cannot be taken into another one."""
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._http, self._loop = self._new_http(), loop
        return self._http

    def _new_http(self) -> httpx.AsyncClient:
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        return httpx.AsyncClient(
            transport=self.transport,
            timeout=self._timeout_s,
            headers=headers,
            # Loading the certificates takes longer than a run on loopback, which needs none.
            verify=not self.base_url.startswith("http://"),
            # A proxy that the environment names cannot reach this machine's loopback.
            trust_env=not _is_loopback(self.base_url),
        )

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, stream: bool
    ) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                self._sendable(message) if message.get("tool_calls") else message
                for message in messages
            ],
        }
        if tools:
            body["tools"] = [_with_parameters(tool) for tool in tools]
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        body.update(self._options)
        body = {name: value for name, value in body.items() if value is not None}
        # "replace": half a surrogate pair in a message must not end the run.
        return _to_json(body).encode("utf-8", "replace")

    def _sendable(self, message: Message) -> Message:
        """The message with calls as this endpoint takes it back, arguments and content mended."""
        calls = [_with_json_arguments(call) for call in message["tool_calls"]]
        content = message.get("content") or self._empty_content
        return {**message, "content": content, "tool_calls": calls}

    # What an answer means.

    def _checked(self, answer: Any) -> dict[str, Any]:
        """A body of status 200 that holds a choice; such a body can also be an error."""
        if error := _error_in(answer):
            self._raise_error(error, None, None)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise _TransientError("the provider's answer holds no choice")
        if not isinstance(choices[0].get("message"), dict):
            raise _TransientError("the provider's answer holds no message")
        return dict(answer)

    def _refuse(self, response: httpx.Response) -> NoReturn:
        """Raise for a status other than 200, with the provider's own words."""
        try:
            body = json.loads(response.content)
        except (ValueError, RecursionError):
            body = None
        error = body.get("error", body) if isinstance(body, dict) else None
        error = error or response.text.strip()[:200] or response.reason_phrase
        wait_s = retry_after(response.headers.get("retry-after"), self._clock())
        self._raise_error(error, response.status_code, wait_s)

    def _raise_error(self, error: Any, status: int | None, wait_s: float | None) -> NoReturn:
        """Raise what a provider's error object (or text) means: for good, or for this time."""
        details = error if isinstance(error, dict) else {"message": error}
        codes = {str(details.get(key)) for key in ("code", "type")}
        status = status or next(map(int, filter(_HTTP_ERROR.fullmatch, codes)), None)
        message = self._without_key(str(details.get("message") or error))[:MAX_ERROR_CHARS]
        if codes & CONTEXT_CODES:
            message = f"the prompt is longer than the model's window: {message}"
        text = f"HTTP {status}: {message}" if status else message
        may_pass = status in (408, 409, 429) or (status or 0) >= 500
        if may_pass and not codes & (QUOTA_CODES | CONTEXT_CODES):
            raise _TransientError(text, status, wait_s)
        raise self._final(text, status)

    def _final(self, text: str, status: int | None = None) -> ProviderError:
        return ProviderError(self._without_key(text), status)

    def _without_key(self, text: str) -> str:
        """The text, should a provider echo the key in it. (A short one is no secret: "none".)"""
        return text.replace(self._key, "[key]") if self._key and len(self._key) >= 8 else text

    # A stream.

    async def _streamed(self, response: httpx.Response, on_delta: Delta) -> dict[str, Any]:
        """The whole answer of a stream of server-sent events.

        Lines end at a line feed only. (httpx's ``aiter_lines`` also ends them at U+2028 and other
        characters that stand as they are in the JSON of some servers.)
        """
        stream, rest = _Assembly(), b""
        async for piece in response.aiter_bytes():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._take(line, stream, on_delta)
        self._take(rest, stream, on_delta)
        return stream.body()

    def _take(self, line: bytes, stream: _Assembly, on_delta: Delta) -> None:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or not data:
            return
        if data == b"[DONE]":
            stream.done = True
            return
        chunk = _json(data)
        if error := _error_in(chunk):
            self._raise_error(error, None, None)
        if text := stream.add(chunk):
            on_delta(text)


_HTTP_ERROR = re.compile("[45][0-9][0-9]")
# Made once, and not looking for circles: json.dumps would make an encoder for each request.
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


def _checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL:  # its text may show a key
        raise ValueError("base_url is no URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            "base_url must begin with http:// or https://, for example http://127.0.0.1:8080/v1"
        )
    if url.userinfo or url.query:
        raise ValueError("base_url must hold neither a key nor a query; pass a key as api_key")
    return str(url).rstrip("/")


def _is_loopback(base_url: str) -> bool:
    host = httpx.URL(base_url).host
    return host in ("localhost", "::1") or host.startswith("127.")


def _checked_key(api_key: str | None) -> str | None:
    """The key, without the line end that comes along from a file; None when there is none."""
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the API key holds a character that no HTTP header carries")
    return key or None


def _json(raw: bytes) -> Any:
    """What a provider sent, read. Bytes that are no UTF-8 become U+FFFD."""
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        raise _TransientError("the provider's answer is not JSON") from None


def _error_in(body: Any) -> Any:
    """The error that a body of status 200, or an event of a stream, holds; None without one."""
    if not isinstance(body, dict):
        return None
    return body.get("error") or (body if body.get("object") == "error" else None)


def _check_price(price: Mapping[str, float]) -> None:
    amounts = [price.get("in"), price.get("out"), price.get("cached", 0.0)]
    if not all(isinstance(usd, (int, float)) and 0 <= usd < math.inf for usd in amounts):
        raise ValueError(
            'price must be {"in": ..., "out": ...} in US dollars per million tokens, 0 or more '
            f'(and "cached", if it has a price of its own); not {dict(price)}'
        )


def _backoff(attempt: int) -> float:
    """Seconds before the next attempt: doubling, with jitter so that clients do not march."""
    longest = min(FIRST_BACKOFF_S * 2**attempt, LONGEST_BACKOFF_S)
    return float(longest * random.uniform(0.75, 1.0))


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header: a number or an HTTP date; None when it says none."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
            # HTTP dates are in GMT, also in the old form, which does not say so.
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


@lru_cache(maxsize=4096)
def _is_json_object(text: str) -> bool:
    """Whether the text holds a JSON object; NaN and 1e999, which Python reads, are no JSON."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _with_json_arguments(call: Message) -> Message:
    """The call as it can be sent back: broken arguments become an object that shows them."""
    function = call["function"]
    given = function.get("arguments")
    if isinstance(given, str) and _is_json_object(given):
        return call
    arguments = _arguments_text(given)
    if not _is_json_object(arguments):
        shown = {"malformed_arguments": arguments[:200]}
        arguments = json.dumps(shown, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _with_parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool with a schema, if only an empty one: some endpoints refuse a tool without."""
    if tool["function"].get("parameters"):
        return tool
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    return {**tool, "function": {**tool["function"], "parameters": parameters}}


# --- one shape ----------------------------------------------------------------------------------


def normalise(
    body: Mapping[str, Any],
    price: Mapping[str, float] | None = None,
    tool_names: set[str] | None = None,
) -> Reply:
    """The reply that a completion's body holds, whatever its dialect.

    ``tool_names``: also take a JSON object in the prose that names one of these as a call.
    """
    choice = body["choices"][0]
    raw = choice["message"]
    content = _content_text(raw.get("content"))
    refusal = _content_text(raw.get("refusal")) or None
    calls = _calls(raw)
    if not calls and tool_names:
        calls = calls_in(content, tool_names)
        content = "" if calls else content
    message: Message = {"role": "assistant", "content": content or refusal or ""}
    if calls:
        message = {"role": "assistant", "content": content or None, "tool_calls": calls}
    finish = _finish_reason(choice.get("finish_reason"), has_calls=bool(calls))
    return Reply(message, finish, refusal, _usage(body.get("usage")), price)


def _finish_reason(given: Any, *, has_calls: bool) -> str:
    """``length`` and ``content_filter`` as given; else what the message itself shows."""
    if given in ("length", "content_filter"):
        return str(given)
    if has_calls:
        return "tool_calls"
    return str(given) if given and "call" not in str(given) else "stop"


def _content_text(content: Any) -> str:
    """Content as text; some endpoints send a list of parts."""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _calls(raw: Mapping[str, Any]) -> list[Message]:
    given = raw.get("tool_calls")
    if not given and raw.get("function_call"):  # the form before tool_calls
        given = [{"function": raw["function_call"]}]
    return [_call(entry) for entry in _list(given) if isinstance(entry, dict)]


def _call(entry: Mapping[str, Any]) -> Message:
    function = entry.get("function")
    function = function if isinstance(function, dict) else entry
    name, call_id = function.get("name"), entry.get("id")
    return {
        "id": call_id if isinstance(call_id, str) else "",
        "type": "function",
        "function": {
            "name": name if isinstance(name, str) else "",
            "arguments": _arguments_text(function.get("arguments")),
        },
    }


def _arguments_text(arguments: Any) -> str:
    """Arguments as a string; some endpoints send an object, an empty string or null."""
    if isinstance(arguments, str):
        return "{}" if arguments.strip() in ("", "null") else arguments
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def _usage(raw: Any) -> dict[str, int] | None:
    """The counts, when both are there and are numbers that counts can be."""
    counts = _dict(raw)
    prompt, completion = (
        _count(counts.get("prompt_tokens")),
        _count(counts.get("completion_tokens")),
    )
    if prompt is None or completion is None:
        return None
    cached = _count(_dict(counts.get("prompt_tokens_details")).get("cached_tokens"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cached_tokens": min(cached or 0, prompt),
    }


def _count(number: Any) -> int | None:
    is_count = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return number if is_count else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def calls_in(text: str, tool_names: set[str]) -> list[Message]:
    """Calls that a model wrote as JSON objects into its prose: a name and arguments."""
    decoder, calls, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        function = _dict(found.get("function")) or found
        name = function.get("name")
        if isinstance(name, str) and name in tool_names:
            arguments = function.get("arguments", function.get("parameters"))
            calls.append(_call({"function": {"name": name, "arguments": arguments}}))
    return calls


# --- a stream, put together ---------------------------------------------------------------------


@dataclass
class _Assembly:
    """The pieces of a streamed answer, until they are a whole one."""

    content: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Any = None
    done: bool = False

    def add(self, chunk: Any) -> str:
        """Take a chunk in; the piece of text that it carries, possibly empty."""
        chunk = _dict(chunk)
        self.usage = chunk.get("usage") or self.usage
        choice = _dict(next(iter(_list(chunk.get("choices"))), None))
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = _dict(choice.get("delta"))
        for piece in _list(delta.get("tool_calls")):
            self._add_call(_dict(piece))
        self.refusal.append(_content_text(delta.get("refusal")))
        text = _content_text(delta.get("content"))
        self.content.append(text)
        return text

    def _add_call(self, piece: dict[str, Any]) -> None:
        function = _dict(piece.get("function"))
        call = self._call_of(piece.get("index"), piece.get("id"), function.get("name"))
        call["id"] = call["id"] or piece.get("id")
        call["name"] = call["name"] or function.get("name")
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call["arguments"] += arguments

    def _call_of(self, index: Any, call_id: Any, name: Any) -> dict[str, Any]:
        """The call that a piece continues, or a new one.

        Some servers leave out the index, some count every call as 0, some leave out the id, some
        repeat the id with every piece. A new id, or a second name, begins a new call.
        """
        same = [call for call in self.calls if index is None or call["index"] == index]
        for call in same:
            if call_id and call["id"] == call_id:
                return call
        if same and not (call_id and same[-1]["id"]) and not (name and same[-1]["name"]):
            return same[-1]
        self.calls.append({"index": index, "id": call_id, "name": name, "arguments": ""})
        return self.calls[-1]

    def body(self) -> dict[str, Any]:
        """The answer, in the shape of a whole one. Raises when the end is missing."""
        message: Message = {"role": "assistant", "content": "".join(self.content)}
        if refusal := "".join(self.refusal):
            message["refusal"] = refusal
        if self.calls:
            message["tool_calls"] = [self._whole(call) for call in self.calls]
        says_something = self.calls or message["content"] or refusal
        if self.finish_reason is None and not (self.done and says_something):
            raise _TransientError("the stream ended before the answer did")
        choice = {"message": message, "finish_reason": self.finish_reason}
        return {"choices": [choice], "usage": self.usage}

    def _whole(self, call: Mapping[str, Any]) -> Message:
        """The call; with the last brace, where a server's stream lost only that."""
        arguments: str = call["arguments"]
        if self.finish_reason != "length" and not _is_json_object(arguments):
            closed = arguments + "}"
            arguments = closed if _is_json_object(closed) else arguments
        return {"id": call["id"], "function": {"name": call["name"], "arguments": arguments}}
