"""Stop, Approve and Reject: a panel that shows a run while it goes on, and hands it to a person.

    panel = RunPanel(state, tools, client, limits=Limits(max_turns=20))
    panel.start()                      # this cell ends; the run goes on in the background

    outcome = await panel.outcome()    # in the next cell
    print(outcome)

A run that needs an approval has stopped, and is saved where a store is given; the panel waits,
writes the decision into the state and calls :func:`harness.run` again. When the outcome is awaited
and nobody clicks, a scripted reader decides, so that Run All finishes; the outcome says who did.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ipywidgets
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

import harness
from harness import AbortSignal, Limits, RunState, Tool, approve, reject, waiting_calls
from panel_view import (
    GONE,
    GONE_HTML,
    STYLE,
    Call,
    Event,
    Live,
    Phase,
    call_html,
    call_words,
    exit_words,
    head_html,
    spent_words,
    trace_html,
)
from run_store import open_trace

By = Literal["person", "script"]

# A kernel interrupt is noticed when the loop next wakes, so a waiting cell wakes often.
HEARTBEAT_S = 0.05
# What a run tells is shown at most so often; a message for each event would flood the page.
RENDER_S = 0.05

# --- who acts when nobody clicks ----------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A script in place of a person: what it does once the outcome is awaited for ``delay_s``.

    ``approve``: yes or no, or the names or ids of the calls to approve. ``stop``: it also presses
    Stop. A person who clicks, or begins to type, is first, and the script does nothing.
    """

    approve: bool | Collection[str] = False
    stop: bool = False
    reason: str = "nobody was there to approve it"
    delay_s: float = 10.0

    def approves(self, call: Call) -> bool:
        if isinstance(self.approve, bool):
            return self.approve
        return call["call_id"] in self.approve or call["tool_name"] in self.approve


def scripted_reader(
    *,
    approve: bool | Collection[str] = False,
    stop: bool = False,
    reason: str = Reader.reason,
    delay_s: float = Reader.delay_s,
) -> Reader:
    """A :class:`Reader`; it rejects unless told to approve. ``delay_s=math.inf``: it never acts.

    The environment variable WORKBOOK_READER_DELAY_S shortens the delay, where nobody watches.
    """
    shortened = float(os.environ.get("WORKBOOK_READER_DELAY_S") or "inf")
    return Reader(approve, stop, reason, min(delay_s, shortened))


@dataclass(frozen=True)
class Decision:
    """What became of a call that waited, and who said so."""

    call: Call
    approved: bool
    reason: str
    by: By

    def __str__(self) -> str:
        verdict = "approved" if self.approved else "rejected"
        because = f", because: {self.reason}" if self.reason and not self.approved else ""
        return f"The {self.by} {verdict} {call_words(self.call)}{because}"


@dataclass(frozen=True)
class Outcome:
    """How a run in a panel ended; ``print`` it for the words.

    ``stopped_by`` and ``stop_reason`` say who pressed Stop; ``stop_s`` how many seconds the run
    then took to end.
    """

    state: RunState
    decisions: tuple[Decision, ...] = ()
    stopped_by: By | None = None
    stop_reason: str = ""
    stop_s: float | None = None

    def __str__(self) -> str:
        lines = [exit_words(self.state), spent_words(self.state)]
        lines += [str(decision) for decision in self.decisions]
        if self.stopped_by is not None and self.stop_reason not in lines[0]:
            lines.append(self.stop_reason[:1].upper() + self.stop_reason[1:])
        if self.state.output:
            lines.append(f"Answer: {self.state.output}")
        return "\n".join(lines)


# --- the panel ----------------------------------------------------------------------------------

Runner = Callable[..., Coroutine[Any, Any, RunState]]


class RunPanel:
    """A run with buttons, for a new state or a loaded one.

    ``start`` shows the panel and runs in the background; ``await outcome()`` in the next cell.
    Starting again, or running the cell again, stops the run that it started before. ``runner`` is
    what runs the state, with the parameters of :func:`harness.run`; ``options`` go there too.
    """

    def __init__(
        self,
        state: RunState,
        tools: Sequence[Tool],
        client: harness.Client,
        *,
        limits: Limits | None = None,
        store: str | Path | None = None,
        trace: str | Path | Callable[[Event], None] | None = None,
        reader: Reader | None = None,
        runner: Runner = harness.run,
        **options: Any,
    ) -> None:
        self.state = state
        self.limits = limits or Limits()
        self.reader = reader or scripted_reader()
        self.trace = trace
        self._session: _Session | None = None
        self._tools = tools
        self._client = client
        self._runner = runner
        self._options = {**options, "limits": self.limits, "store": store}

    def start(self) -> None:
        """Show the panel and start the run, or continue it. Needs a running event loop."""
        session = _Session(self, asyncio.get_running_loop())
        replaced = [old for old in _live if old.gives_way_to(session)]
        for old in replaced:
            old.stop("a new panel took the place of this one")
        _live.append(session)
        self._session = session
        session.show()
        session.task = session.loop.create_task(session.go_on(replaced))

    async def outcome(self) -> Outcome:
        """Wait for the end of the run. Raises what broke the panel or the run's caller."""
        if self._session is None:
            raise RuntimeError("start the panel first: panel.start()")
        return await self._session.outcome()

    async def run_once(self, signal: AbortSignal, trace: Callable[[Event], None]) -> None:
        await self._runner(
            self.state, self._tools, self._client, signal=signal, trace=trace, **self._options
        )


# The started panels whose run has not ended.
_live: list[_Session] = []


def _ipykernel() -> Any:
    """The kernel that knows its messages: None outside a notebook, and in a page."""
    return None if sys.platform == "emscripten" else getattr(get_ipython(), "kernel", None)


def _this_cell() -> tuple[str, str]:
    """The cell that is being executed, as the front end names it, and this execution of it."""
    shell = get_ipython()
    if sys.platform == "emscripten" and shell is not None:
        # The kernel in a page names no cell: the same text is taken for the same cell.
        return shell.user_ns["In"][-1], str(shell.execution_count)
    kernel = _ipykernel()
    parent = kernel.get_parent("shell") if kernel is not None else {}
    cell = parent.get("metadata", {}).get("cellId", "")
    return cell, parent.get("header", {}).get("msg_id", "")


class _Session:
    """One start of a panel: its widgets, its task, its signal. All of it lives on one loop."""

    task: asyncio.Task[None]

    def __init__(self, panel: RunPanel, loop: asyncio.AbstractEventLoop) -> None:
        self.panel = panel
        self.loop = loop
        self._context = contextvars.copy_context()
        self.cell, self.execution = _this_cell()
        self.signal = AbortSignal()
        self.live = Live(panel.state)
        self.phase: Phase = "running"
        self.decisions: list[Decision] = []
        self.problem: Exception | None = None
        self.stopped_by: By | None = None
        self.stop_s: float | None = None
        self._pressed_at = 0.0
        self._inbox: asyncio.Queue[Decision | None] = asyncio.Queue()
        self._decided: set[str] = set()
        self._awaited = asyncio.Event()  # a cell waits for the outcome
        self._person_is_here = False
        self._timer: asyncio.TimerHandle | None = None
        self.cards: dict[str, _Card] = {}
        self._make_widgets()

    def gives_way_to(self, new: _Session) -> bool:
        """Whether ``new`` is the same panel, the same run, or the same cell executed again."""
        if self.panel.state is new.panel.state:
            return True
        return bool(self.cell) and self.cell == new.cell and self.execution != new.execution

    # The run: start, wait for decisions, resume, until it has an exit.

    async def go_on(self, replaced: Sequence[_Session]) -> None:
        try:
            for old in replaced:
                await asyncio.wait({old.task})
            with ExitStack() as stack:
                forward = stack.enter_context(open_trace(self.panel.trace))
                while await self._run_and_decide(forward):
                    pass
        except Exception as problem:
            self.fail(problem)
        finally:
            self._end()

    async def _run_and_decide(self, forward: Callable[[Event], None]) -> bool:
        """One run, and one decision where it waits for some; False when there is no more to do."""

        def take(event: Event) -> None:
            self.live.take(event)
            forward(event)
            self._changed()

        self._enter("running" if not self.signal.aborted else "stopping")
        self.live.begin()
        script = self.loop.create_task(self._script_stops())
        try:
            await self.panel.run_once(self.signal, take)
        finally:
            script.cancel()
        calls = waiting_calls(self.panel.state)
        decision = await self._decision(calls) if calls else None
        if decision is None:
            return False
        self._write(decision)
        return True

    async def _decision(self, calls: Sequence[Call]) -> Decision | None:
        """The first decision on one of the waiting calls; None when Stop comes first."""
        self._show_cards(calls)
        self._enter("waiting")
        script = self.loop.create_task(self._script_decides(calls))
        waiting = {call["call_id"] for call in calls}
        try:
            while not self.signal.aborted:
                decision = await self._inbox.get()
                if decision is not None and decision.call["call_id"] in waiting:
                    return decision
        finally:
            script.cancel()
        return None

    def _write(self, decision: Decision) -> None:
        """Put a decision into the state, where the next run finds it."""
        call_id = decision.call["call_id"]
        if decision.approved:
            approve(self.panel.state, call_id)
        else:
            reject(self.panel.state, call_id, decision.reason)
        self.decisions.append(decision)
        self.live.lines.append(str(decision))

    def _end(self) -> None:
        if self.stopped_by is not None:
            self.stop_s = time.perf_counter() - self._pressed_at
        _live.remove(self)
        self._show_cards(())
        self._enter("broken" if self.problem else "ended")
        self._render()

    # What a person or the script does. These run on the loop.

    def stop(self, reason: str, by: By | None = None) -> None:
        """End the run, or the waiting for a decision; only the first Stop counts."""
        if self.signal.aborted or self.phase in ("ended", "broken"):
            return
        self.stopped_by, self._pressed_at = by, time.perf_counter()
        self._enter("stopping")
        self.signal.abort(reason)
        self._inbox.put_nowait(None)

    def decide(self, call: Call, approved: bool, by: By, reason: str = "") -> None:
        """Approve or reject; only the first decision on a call counts."""
        if call["call_id"] in self._decided or self.phase in ("ended", "broken"):
            return
        self._decided.add(call["call_id"])
        if call["call_id"] in self.cards:
            self.cards[call["call_id"]].enable(False)
        self._inbox.put_nowait(Decision(call, approved, reason, by))

    def person_types(self) -> None:
        """A person is writing a reason: the script leaves the decision to them."""
        self._person_is_here = True
        self._changed()

    def fail(self, problem: Exception) -> None:
        """Show what went wrong, and end the run: a panel that is broken cannot stop it later."""
        self.problem = self.problem or problem
        self.signal.abort("the panel failed")
        self._inbox.put_nowait(None)
        self._changed()

    async def _script_stops(self) -> None:
        if self.panel.reader.stop:
            await self._patience()
            self.stop("the script pressed Stop", "script")

    async def _script_decides(self, calls: Sequence[Call]) -> None:
        self._person_is_here = False
        await self._patience()
        if self._person_is_here and self._hears_clicks():
            return
        reader = self.panel.reader
        for call in calls:
            self.decide(call, reader.approves(call), "script", reader.reason)

    async def _patience(self) -> None:
        await self._awaited.wait()
        await asyncio.sleep(self.panel.reader.delay_s)

    def _hears_clicks(self) -> bool:
        """Whether a click can arrive: in a page none does while a cell awaits the outcome."""
        return sys.platform != "emscripten" or not self._awaited.is_set()

    async def outcome(self) -> Outcome:
        self._awaited.set()
        self._changed()
        try:
            while not self.task.done():
                await asyncio.wait({self.task}, timeout=HEARTBEAT_S)
        except asyncio.CancelledError:  # a kernel interrupt
            self.stop("the kernel was interrupted", "person")
            await asyncio.wait({self.task}, timeout=1)
            raise
        finally:
            self._awaited.clear()
        if self.problem is not None:
            raise self.problem
        state = self.panel.state
        reason = self.signal.reason or ""
        return Outcome(state, tuple(self.decisions), self.stopped_by, reason, self.stop_s)

    # The widgets. A callback of theirs may run in another thread, so it does one thing: hop.

    def hop(self, act: Callable[..., None], *args: Any) -> Callable[[Any], None]:
        """A widget's callback that lets ``act(*args)`` run on the loop, as the cell's own code.

        In the context of the click, what ``act`` tells a widget would make ipykernel 7.4 hand that
        widget's next message to another thread: a click could overtake the reason typed before it.
        """

        def hop_to_the_loop(_: Any) -> None:
            self.loop.call_soon_threadsafe(self.guarded, act, *args, context=self._context)

        return hop_to_the_loop

    def guarded(self, act: Callable[..., None], *args: Any) -> None:
        """What is raised in a callback would be shown nowhere."""
        try:
            act(*args)
        except Exception as problem:
            self.fail(problem)

    def _make_widgets(self) -> None:
        self._head = ipywidgets.HTML()
        self._trace = ipywidgets.HTML()
        self.stop_button = ipywidgets.Button(description="Stop", tooltip="Stop this run")
        self.stop_button.on_click(self.hop(self.stop, "user pressed Stop", "person"))
        self._cards = ipywidgets.VBox()
        style = ipywidgets.HTML(STYLE, layout={"display": "none"})
        rows = [style, self._head, self._cards, self.stop_button, self._trace]
        self._box = ipywidgets.VBox(rows).add_class("run-panel")

    def show(self) -> None:
        """Display the panel, and beside it the words that remain when its kernel is gone."""
        self.live.begin()
        self._render()
        bundle = self._box._repr_mimebundle_()
        display({kind: bundle[kind] for kind in bundle if kind != "text/plain"}, raw=True)
        display({"text/html": GONE_HTML, "text/plain": GONE}, raw=True)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.stop_button.disabled = phase not in ("running", "waiting")
        for call_id, card in self.cards.items():
            card.enable(phase == "waiting" and call_id not in self._decided)
        self._changed()

    def _show_cards(self, calls: Sequence[Call]) -> None:
        """A card for each waiting call; one that is there already keeps its typed reason."""
        old, self.cards = self.cards, {}
        for call in calls:
            self.cards[call["call_id"]] = old.get(call["call_id"]) or _Card(self, call)
        self._cards.children = [card.box for card in self.cards.values()]

    def _changed(self) -> None:
        """Show it soon; what follows at once is shown with it."""
        if self._timer is None:
            self._timer = self.loop.call_later(RENDER_S, self.guarded, self._render)

    def _render(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        note = f"{type(self.problem).__name__}: {self.problem}" if self.problem else self._note()
        self._head.value = head_html(self.live, self.panel.limits, self.phase, note)
        self._trace.value = trace_html(self.live.lines)

    def _note(self) -> str:
        """What the script is about to do, where it is about to do something."""
        seconds = f"{self.panel.reader.delay_s:g} s"
        nobody = f"If nobody clicks within {seconds}"
        if not self._hears_clicks():
            nobody = f"While a cell waits, this page hears no click. In {seconds}"
        elif self.phase == "waiting" and self._person_is_here:
            return "You are typing a reason: take your time."
        if self.phase == "waiting" and self._awaited.is_set():
            return f"The next cell waits. {nobody}, a script decides."
        if self.phase == "waiting":
            return "Nothing runs meanwhile, and nothing is lost: take your time."
        if self.phase == "running" and self.panel.reader.stop and self._awaited.is_set():
            return f"{nobody}, a script presses Stop."
        return ""


class _Card:
    """One waiting call: what it is, why not, and the two buttons."""

    def __init__(self, session: _Session, call: Call) -> None:
        self.session, self.call = session, call
        name = f"{call['tool_name']}, call {call['call_id']}"
        self.reason = _Reason(
            description="If you reject it, why?",
            placeholder="the model reads this",
            tooltip=f"Reason for rejecting {name}",
            style={"description_width": "initial"},
        )
        self.approve = ipywidgets.Button(description="Approve", tooltip=f"Approve {name}")
        self.reject = ipywidgets.Button(description="Reject", tooltip=f"Reject {name}")
        self.reason.observe(lambda _: session.guarded(_free_the_page), "value")
        self.reason.observe(session.hop(self.type), "value")
        self.approve.on_click(session.hop(self.press, True))
        self.reject.on_click(session.hop(self.press, False))
        text = ipywidgets.HTML(call_html(call))
        buttons = ipywidgets.HBox([self.approve, self.reject])
        self.box = ipywidgets.VBox([text, self.reason, buttons]).add_class("rp-card")

    def type(self) -> None:
        """The first letter tells that somebody is there; what follows comes when the field is left.

        A page sends a click at once, and a change only after the last one was taken. On a busy
        machine a click on Reject would overtake the end of a reason that came letter by letter.
        """
        self.reason.continuous_update = False
        self.session.person_types()

    def press(self, approved: bool) -> None:
        reason = "" if approved else self.reason.value.strip()
        self.session.decide(self.call, approved, "person", reason)

    def enable(self, enabled: bool) -> None:
        for widget in (self.reason, self.approve, self.reject):
            widget.disabled = not enabled


class _Reason(ipywidgets.Text):  # type: ignore[misc]  # ipywidgets has no types
    """A text field whose changes are not sent back: that too would move it to another thread."""

    value = traitlets.Unicode().tag(sync=True, echo_update=False)


def _free_the_page() -> None:
    """Tell the page that the change which it sent has been taken.

    A page holds a widget's next change back until the kernel is idle after the last one, and
    ipykernel 7.4 says so of no change that it takes while a cell is busy: of the reason, only the
    first letter would ever arrive. Called in the context of the change, which names its message.
    """
    kernel = _ipykernel()
    if kernel is None or threading.current_thread() is not threading.main_thread():
        return
    parent = kernel.get_parent("shell")
    if parent.get("header", {}).get("msg_type") == "comm_msg":
        for state in ("idle", "busy"):  # the cell is still busy, and the page shows the last word
            content = {"execution_state": state}
            kernel.session.send(kernel.iopub_socket, "status", content, parent=parent)
