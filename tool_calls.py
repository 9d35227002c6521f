"""Tools, and what stands between a model's call and a tool's code.

A call arrives as text that a model wrote: it may name no tool, hold no JSON, or not fit. A result
leaves as text that a model will read: one string, clean, and not endless. Each problem is put in
words that tell the model what to do next.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import fastjsonschema

from abort_signal import AbortSignal, abandon, ends_in_time, give_up

MAX_RESULT_CHARS = 100_000
# Of arguments. They are saved, and whoever loads them may have a deep stack of its own already.
MAX_DEPTH = 100
EXCERPT_CHARS = 120
# Ids that an endpoint takes back, and that can be part of a path of ids.
_CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_CUT_OFF = (
    "Error: the token limit cut this message off, so the call was not executed. "
    "Send it again, complete and shorter."
)

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class PermanentToolError(Exception):
    """Raised by a tool when nothing that the model does can help: the run stops as failed."""


class BadCallError(Exception):
    """A call that cannot be executed; the text is what the model is told."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool gets beside its arguments.

    ``progress("600 of 1,200 files")`` reports a step. ``idempotency_key`` is the same for the
    same call over crash and resume, and different for every other call.
    """

    signal: AbortSignal
    progress: Callable[[str], None]
    run_id: str
    call_id: str
    idempotency_key: str
    # The run that made the call; only harness.run looks inside (see its parameter `parent`).
    owner: Any = field(default=None, repr=False)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Callable[[Any], Any]:
    """The compiled check of a schema; compiling takes longer than a turn, so it is kept.

    fastjsonschema, because importing jsonschema takes seconds where all its formats are installed.
    """
    check: Callable[[Any], Any] = fastjsonschema.compile(
        json.loads(schema), use_default=False, use_formats=False
    )
    return check


ToolFunction = Callable[[dict[str, Any], ToolContext], Any]


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    ``parameters`` is a JSON Schema object. ``run(args, ctx)`` is ``async def``, or a plain
    function, which then runs in a thread. ``needs_approval`` may be a function of the arguments.
    ``read_only``: has no effect that anyone would miss or mind. ``idempotent``: calling it again
    for the same call (the same ``ctx.idempotency_key``) has no further effect. Raises ValueError
    for a name or a schema that no endpoint would take.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] | None
    run: ToolFunction
    read_only: bool = False
    needs_approval: bool | Callable[[dict[str, Any]], bool] = False
    timeout_s: float | None = None
    idempotent: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"tool name {self.name[:80]!r}: use 1 to 64 letters, digits, '_', '-' or '.'"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s of {self.name} must be above 0 or None")
        _ = self.validate

    @property
    def schema(self) -> dict[str, Any]:
        """The parameters; an object without properties when none were given."""
        return dict(self.parameters or _NO_PARAMETERS)

    @property
    def safe_to_repeat(self) -> bool:
        return self.read_only or self.idempotent

    @cached_property
    def validate(self) -> Callable[[Any], Any]:
        """Raises JsonSchemaValueException for arguments that do not fit ``parameters``."""
        try:
            return _validator(json.dumps(self.schema))
        except Exception as problem:
            raise ValueError(
                f"the parameters of {self.name} are no JSON Schema: {problem}"
            ) from None

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The entry of ``tools`` in a request."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
        }
        return {"type": "function", "function": function}

    def wants_approval(self, args: dict[str, Any]) -> bool:
        """Whether a person must agree first. When the question itself fails: yes."""
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            return bool(self.needs_approval(args))
        except Exception:
            return True


# --- text --------------------------------------------------------------------------------------


def clean_text(text: str) -> str:
    """Text that every encoder, endpoint and terminal takes.

    Lone surrogates become U+FFFD, control characters other than tab and line ends vanish.
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub("", _without_surrogates(text))


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def excerpt(text: str, limit: int = EXCERPT_CHARS) -> str:
    """The beginning of a text, marked when something was left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def result_text(result: Any) -> str:
    """Whatever a tool returned, as one string for the transcript: cleaned, and cut with a note."""
    text = clean_text(_as_text(result))
    if len(text) > MAX_RESULT_CHARS:
        left_out = len(text) - MAX_RESULT_CHARS
        text = f"{text[:MAX_RESULT_CHARS]}\n[cut here: {left_out:,} more characters]"
    return text or "(no output)"


def _as_text(result: Any) -> str:
    if result is None:
        return ""
    if isinstance(result, str):
        return result
    if isinstance(result, (bytes, bytearray)):
        return bytes(result).decode("utf-8", "replace")
    try:
        return json.dumps(result, ensure_ascii=False, separators=(",", ":"), default=str)
    except Exception:
        with suppress(Exception):
            return str(result)
        return f"(a {type(result).__name__} that has no text)"


def error_text(error: BaseException) -> str:
    """An error's words; its type when it has none."""
    with suppress(Exception):
        if said := clean_text(str(error)).strip():
            return said
    return type(error).__name__


def tidy_message(message: Mapping[str, Any], used: set[str], turn: int) -> dict[str, Any]:
    """A model's message, cleaned once where it enters: texts, and calls that can be sent back.

    Models leave ids out and use them again. Each call gets an id that is not in ``used``, and is
    added there, because an approval must never fit a second call.
    """
    content = clean_text(message.get("content") or "")
    calls: list[dict[str, Any]] = []
    for number, call in enumerate(message.get("tool_calls") or (), 1):
        calls.append(_tidy_call(call, used, f"call_{turn}_{number}"))
        used.add(calls[-1]["id"])
    if calls:
        return {"role": "assistant", "content": content or None, "tool_calls": calls}
    return {"role": "assistant", "content": content}


def _tidy_call(call: Mapping[str, Any], taken: Collection[str], new_id: str) -> dict[str, Any]:
    call_id, function = call.get("id"), call["function"]
    if not isinstance(call_id, str) or not _CALL_ID.fullmatch(call_id) or call_id in taken:
        call_id = new_id
        while call_id in taken:
            call_id += "_"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", function["name"])[:64] or "unnamed"
    arguments = clean_text(function["arguments"])
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


# --- a call, checked ----------------------------------------------------------------------------


def parse_arguments(name: str, raw: str) -> dict[str, Any]:
    """The arguments of a call as a dict. Raises BadCallError when they are not a JSON object."""
    if not raw.strip() or raw.strip() == "null":
        return {}
    try:
        arguments = json.loads(raw)
        if _deeper(arguments, MAX_DEPTH):
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        # NaN and 1e999 are read, but are no JSON; "\\ud83d" is read, but is no character.
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if _SURROGATES.search(text):
            arguments = json.loads(_without_surrogates(text))
    except (ValueError, RecursionError) as problem:
        raise BadCallError(
            f"Error: the arguments of {name} are not valid JSON ({problem}), so it was not "
            f"executed. They began: {excerpt(raw)} Send the call again with a JSON object."
        ) from None
    if not isinstance(arguments, dict):
        raise BadCallError(
            f"Error: the arguments of {name} must be a JSON object, so it was not executed. "
            f"They were: {excerpt(raw)}"
        )
    return arguments


def _deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def check_call(call: Mapping[str, Any], tools: Mapping[str, Tool]) -> tuple[Tool, dict[str, Any]]:
    """The tool and the arguments of a call.

    Raises BadCallError for an unknown tool, malformed arguments, and arguments that do not fit.
    """
    name = call["function"]["name"]
    if name not in tools:
        known = ", ".join(tools) or "none"
        raise BadCallError(f"Error: there is no tool named {name}. Available tools: {known}.")
    tool = tools[name]
    arguments = parse_arguments(name, call["function"]["arguments"])
    try:
        tool.validate(arguments)
    except Exception as problem:  # they do not fit, or are so odd that the check itself gave up
        raise BadCallError(
            f"Error: the arguments of {name} do not fit, so it was not executed: "
            f"{_describe(problem)}. It takes: {json.dumps(tool.schema, ensure_ascii=False)}"
        ) from None
    return tool, arguments


def _describe(problem: Exception) -> str:
    """A misfit, in the words of whoever must mend the call."""
    if not isinstance(problem, fastjsonschema.JsonSchemaValueException):
        return excerpt(error_text(problem))
    if problem.rule == "required":
        missing = [name for name in problem.rule_definition if name not in problem.value]
        return "missing parameter " + ", ".join(missing)
    return excerpt(problem.message.removeprefix("data."))


def verdicts(
    calls: Sequence[Mapping[str, Any]], tools: Mapping[str, Tool], *, cut_off: bool
) -> dict[str, str]:
    """By call id, the words for each call that must not be executed.

    ``cut_off``: the token limit ended the message, so what looks whole may be half a call.
    """
    if cut_off:
        return dict.fromkeys((call["id"] for call in calls), _CUT_OFF)
    words = {}
    for call in calls:
        try:
            check_call(call, tools)
        except BadCallError as problem:
            words[call["id"]] = str(problem)
    return words


# --- one execution ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How one execution ended.

    ``kind``: it gave a value, raised an error, obeyed a cancellation, or is still running because
    it did not. ``cut_by``: what came first, if it did not end by itself.
    """

    kind: Literal["value", "error", "cancelled", "running"]
    cut_by: Literal["timeout", "abort"] | None = None
    value: Any = None
    error: BaseException | None = None


async def execute(tool: Tool, args: dict[str, Any], ctx: ToolContext) -> Outcome:
    """Run a tool until it ends, its time is up, or ``ctx.signal`` is set. Never raises for it."""
    if ctx.signal.aborted:
        return Outcome("cancelled", "abort")
    with ctx.signal.derived() as signal:
        task = asyncio.ensure_future(_call(tool, args, replace(ctx, signal=signal)))
        cut_by: Literal["timeout", "abort"] | None = None
        try:
            if not await ends_in_time(task, signal, tool.timeout_s):
                cut_by = "abort" if signal.aborted else "timeout"
                signal.abort(f"{tool.name} ran longer than {tool.timeout_s} s")
                await give_up(task)
        except asyncio.CancelledError:  # the task around us: what we started ends before we do
            signal.abort("the task was cancelled")
            await give_up(task)
            raise
        finally:
            if not task.done():
                signal.abort("nobody waits for this call any more")
                abandon(task)
        return _outcome(task, cut_by)


def _outcome(task: asyncio.Future[Any], cut_by: Literal["timeout", "abort"] | None) -> Outcome:
    if not task.done():
        return Outcome("running", cut_by)
    if task.cancelled():
        if cut_by:
            return Outcome("cancelled", cut_by)
        return Outcome("error", error=RuntimeError("the tool cancelled itself"))
    if error := task.exception():
        return Outcome("error", cut_by, error=error)
    return Outcome("value", cut_by, value=task.result())


async def _call(tool: Tool, args: dict[str, Any], ctx: ToolContext) -> Any:
    try:
        if _is_async(tool.run) or sys.platform == "emscripten":  # a browser has no threads
            result = tool.run(args, ctx)
            return await result if isinstance(result, Awaitable) else result
        return await _in_thread(tool.run, args, ctx)
    except SystemExit as problem:  # a tool's sys.exit() must not end the process
        raise RuntimeError(f"the tool tried to exit ({problem.code})") from None


def _is_async(function: ToolFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__
    )


async def _in_thread(function: ToolFunction, args: dict[str, Any], ctx: ToolContext) -> Any:
    """Run a plain function in a daemon thread of its own.

    Not asyncio.to_thread: its pool is joined at the end of the program, so one function that
    ignores the signal would keep a stopped run's process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function, args, ctx)
        except (StopIteration, KeyboardInterrupt) as problem:  # no future carries these
            error = RuntimeError(f"the tool raised {type(problem).__name__}")
        except BaseException as problem:
            error = problem
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"tool-{ctx.call_id}", daemon=True).start()
    try:
        result = await asyncio.shield(future)
    except asyncio.CancelledError:  # a thread cannot be cancelled; it is told by ctx.signal
        result = await future
    # A plain function may hand back a coroutine (a lambda around an async one, say).
    return await result if inspect.isawaitable(result) else result
