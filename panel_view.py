"""What a panel shows of a run: in words, and as HTML with every text from outside escaped."""

from __future__ import annotations

import html
import json
import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from harness import Limits, RunState, pending, waiting_calls

Event = dict[str, Any]
Call = dict[str, Any]
Phase = Literal["running", "stopping", "waiting", "ended", "broken"]

TRACE_LINES = 200
SHOWN_ARGUMENT_CHARS = 120

# --- a run in words -----------------------------------------------------------------------------


def exit_words(state: RunState) -> str:
    """The exit and its reason."""
    why = state.interruption or {}
    if state.status == "failed":
        return f"failed: {state.error}"
    if why.get("type") == "approval":
        names = ", ".join(call["tool_name"] for call in waiting_calls(state))
        return f"interrupted: {names} waits for approval"
    if state.status == "interrupted":
        return f"interrupted: {why.get('reason') or why.get('name')}"
    return state.status


def spent_words(state: RunState) -> str:
    turns = "1 turn" if state.turns == 1 else f"{state.turns} turns"
    return f"{turns} · {_dollars(state)}"


def next_words(state: RunState) -> str:
    """What a person can do with a run that has stopped."""
    match state.status:
        case "completed":
            return 'Finished. To ask on: follow_up(state, "..."), then a new panel.'
        case "failed":
            return (
                "Not resumable as it is. Mend the cause, then follow_up(state, ...) or a new run."
            )
        case "max_turns_exceeded" | "budget_exceeded":
            return "Resumable: a panel with a higher limit goes on from here."
        case _ if waiting_calls(state):
            return "Resumable: panel.start() asks for the decision again."
        case _:
            return "Resumable: panel.start() goes on from here."


def call_words(call: Call) -> str:
    """A waiting call in one line."""
    return f"{call['tool_name']}({json.dumps(call['args'], ensure_ascii=False)})"


def trace_words(event: Event) -> str:
    """One line of the trace as a person reads it."""
    indent = "  " if "parentRunId" in event else ""
    return indent + _event_words(event)


def _event_words(event: Event) -> str:
    match event["type"]:
        case "turn":
            tokens = f"{event['prompt_tokens']:,} in + {event['completion_tokens']:,} out"
            return f"turn {event['turn']} · {tokens} tokens · ${event['costUsd']:.6f}"
        case "tool_start":
            return f"{event['toolName']} {_short(event['args'])} · started"
        case "tool_progress":
            return f"{event['toolName']} · {event['label']}"
        case "tool_result":
            return f"{event['toolName']} · {_result_words(event)}"
        case "approval_required":
            return f"{event['toolName']} {_short(event['args'])} · waits for approval"
        case "run_stopped":
            return f"stopped · {event['status']} · {event['reason']}"
        case other:
            return str(other)


def _result_words(event: Event) -> str:
    if event.get("interrupted"):
        return "interrupted"
    if event.get("cached"):
        return "answered from memory"
    if event.get("executed") is False:
        return "not executed"
    return f"{'ok' if event['ok'] else 'error'} · {event['ms']:,} ms"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_ARGUMENT_CHARS else f"{text[:SHOWN_ARGUMENT_CHARS]}…"


def _dollars(state: RunState) -> str:
    doubt = {"exact": "", "estimated": " (estimated)", "unknown": " (without unknown prices)"}
    return f"${state.cost_usd:.6f}{doubt[state.cost_basis]}"


_SHARE = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(?:of|/)\s*(\d[\d,]*(?:\.\d+)?)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def share_of(label: str) -> float | None:
    """How much is done, from 0 to 1, if a progress label says so: "600 of 1,200", "50 %"."""
    if found := _SHARE.search(label):
        done, total = (float(number.replace(",", "")) for number in found.groups())
        return min(done / total, 1.0) if total else None
    if found := _PERCENT.search(label):
        return min(float(found[1]) / 100, 1.0)
    return None


@dataclass
class Live:
    """What a panel shows of a run that goes on, gathered from its trace."""

    state: RunState
    steps: dict[str, str] = field(default_factory=dict)  # by run: a child's after its parent's
    share: float | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE_LINES))

    def begin(self) -> None:
        turn = self.state.turns if pending(self.state) else self.state.turns + 1
        doing = "settling open calls" if pending(self.state) else "asking the model"
        self.steps, self.share = {self.state.run_id: f"turn {turn} · {doing}"}, None

    def take(self, event: Event) -> None:
        """Note an event; a child run's events show beside the call that it works for."""
        self.lines.append(trace_words(event))
        run_id = event["runId"]
        turn = self.steps.get(run_id, "").partition(" · ")[0] or "turn 1"
        self.share = None
        match event["type"]:
            case "turn":
                self.steps[run_id] = f"turn {event['turn']} · the model has answered"
            case "tool_start":
                self.steps[run_id] = f"{turn} · running {event['toolName']}"
            case "tool_progress":
                self.steps[run_id] = f"{turn} · running {event['toolName']} · {event['label']}"
                self.share = share_of(event["label"])
            case "tool_result":
                self._after_call(run_id, event["toolName"])
            case "run_stopped" if run_id != self.state.run_id:
                self.steps.pop(run_id, None)

    def _after_call(self, run_id: str, tool_name: str) -> None:
        if run_id == self.state.run_id:
            self.steps = {}  # a child run that worked for this call has ended with it
        self.steps[run_id] = f"turn {self.state.turns + 1} · asking the model after {tool_name}"

    def step(self) -> str:
        return " · ".join(self.steps.values())


# --- a run as HTML: every text from outside is escaped ------------------------------------------

# The colours are those of JupyterLab's theme, with fallbacks for places that have none.
STYLE = """<style>
.run-panel { color: var(--jp-ui-font-color1, CanvasText); padding: 0.6em 0.8em; max-width: 60em;
  border: 1px solid var(--jp-border-color1, GrayText); border-radius: 4px; overflow: hidden; }
.run-panel .widget-html-content, .run-panel .jupyter-widget-html-content { width: 100%;
  line-height: 1.5; overflow-wrap: anywhere; }
.run-panel .rp-status { font-weight: 600; }
.run-panel .rp-meters { display: flex; flex-wrap: wrap; gap: 0 2em; }
.run-panel .rp-meter { flex: 1 1 16em; }
.run-panel .rp-bar { height: 0.6em; margin: 0.1em 0 0.4em; border-radius: 3px; overflow: hidden;
  border: 1px solid var(--jp-ui-font-color2, GrayText);
  background: var(--jp-layout-color1, Canvas); }
.run-panel .rp-bar > div { height: 100%; background: var(--jp-brand-color1, Highlight); }
.run-panel pre { margin: 0.2em 0; padding: 0.4em 0.6em; max-height: 16em; overflow: auto;
  white-space: pre-wrap; color: inherit; background: var(--jp-layout-color2, Canvas);
  font-family: var(--jp-code-font-family, monospace); font-size: 0.95em; }
.run-panel .rp-trace { display: flex; flex-direction: column-reverse; max-height: 11em;
  overflow: auto; background: var(--jp-layout-color2, Canvas); }
.run-panel .rp-trace pre { max-height: none; overflow: visible; }
.run-panel .rp-alarm { border-left: 4px solid var(--jp-error-color1, Mark);
  padding-left: 0.6em; }
.run-panel .rp-card { border-left: 4px solid var(--jp-brand-color1, Highlight);
  padding: 0.2em 0.2em 0.3em 0.8em; margin: 0.4em 0; overflow: hidden; }
.run-panel .rp-said { white-space: pre-wrap; }
.run-panel .jupyter-button { height: auto; min-height: 2.2em; line-height: 1.5; width: auto;
  min-width: 7em; color: var(--jp-ui-font-color1, ButtonText); font-size: inherit;
  border: 1px solid var(--jp-ui-font-color2, ButtonText); border-radius: 3px;
  background: var(--jp-layout-color1, ButtonFace); }
.run-panel > .jupyter-button { align-self: flex-start; }
.run-panel .jupyter-button:disabled { opacity: 1; color: var(--jp-ui-font-color2, GrayText);
  border-style: dashed; background: transparent; }
.run-panel :is(button, input, [tabindex]):focus-visible {
  outline: 3px solid var(--jp-brand-color1, Highlight); outline-offset: 1px; }
.run-panel .widget-text { width: auto; max-width: 40em; flex-wrap: wrap; height: auto; }
.run-panel .widget-text .widget-label { width: auto; max-width: 100%; height: auto;
  color: inherit; }
.run-panel .widget-text input { min-width: 14em; }
.run-panel.jupyter-widgets-disconnected { display: none; }
</style>"""

# What stays where the buttons were, once the kernel that made them is gone.
GONE = (
    "Run this cell to see the run panel here, with Stop, Approve and Reject. "
    "Its buttons live as long as their kernel: after a restart, run the cell again."
)
GONE_HTML = f"""<style>
.jp-OutputArea:has(.run-panel:not(.jupyter-widgets-disconnected)) .run-panel-gone,
.jp-OutputArea:has(.run-panel-gone) > .jp-OutputArea-child
  > .jp-OutputArea-output.jupyter-widgets:not(:has(*)) {{ display: none; }}
</style><p class="run-panel-gone"><em>{GONE}</em></p>"""

_HEADINGS: dict[Phase, str] = {
    "running": "▶ Running",
    "stopping": "◼ Stopping …",
    "waiting": "❚❚ Stopped: it waits for your decision",
    "broken": "✖ Error in the panel",
}


def bar_html(share: float, name: str) -> str:
    percent = round(min(max(share, 0.0), 1.0) * 100)
    return (
        f'<div class="rp-bar" role="progressbar" aria-label="{html.escape(name)}" '
        f'aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent}">'
        f'<div style="width:{percent}%"></div></div>'
    )


def meters_html(state: RunState, limits: Limits) -> str:
    """Turns and dollars, each against its limit, in words and as a bar."""
    turns, money = limits.max_turns, limits.max_budget_usd
    of_turns = ", no limit" if turns is None else f" of {turns}"
    of_money = ", no limit" if money is None else f" of ${money:g}"
    return (
        '<div class="rp-meters">'
        + _meter(f"Turns: {state.turns}{of_turns}", state.turns, turns)
        + _meter(f"Money: {_dollars(state)}{of_money}", state.cost_usd, money)
        + "</div>"
    )


def _meter(words: str, used: float, limit: float | None) -> str:
    share = 0.0 if limit is None else used / limit if limit else 1.0
    bar = "" if limit is None else bar_html(share, words)
    return f'<div class="rp-meter">{html.escape(words)}{bar}</div>'


def head_html(live: Live, limits: Limits, phase: Phase, note: str = "") -> str:
    """Status, step, progress and meters; at the end the exit and what can be done next."""
    state = live.state
    heading = _HEADINGS.get(phase) or f"◼ Ended · {exit_words(state)}"
    lines = [f'<div class="rp-status" role="status">{html.escape(heading)}</div>']
    if phase in ("running", "stopping"):
        lines.append(f"<div>{html.escape(live.step())}</div>")
        if live.share is not None:
            lines.append(bar_html(live.share, "Progress of the tool"))
    if phase == "ended":
        answer = f"Answer: {state.output}" if state.output else ""
        said = [text for text in (answer, next_words(state)) if text]
        lines += [f'<div class="rp-said">{html.escape(text)}</div>' for text in said]
    if note:
        kind = ' class="rp-alarm"' if phase == "broken" else ""
        lines.append(f"<div{kind}>{html.escape(note)}</div>")
    return "".join(lines) + meters_html(state, limits)


def trace_html(lines: Collection[str]) -> str:
    """The trace, scrolled to its end (a reversed column keeps the newest line in sight)."""
    text = html.escape("\n".join(lines)) or "(nothing yet)"
    return (
        '<div class="rp-trace" tabindex="0" role="log" aria-label="Trace of the run">'
        f"<pre>{text}</pre></div>"
    )


# Characters that a page does not show, or that turn the order of the others round.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def call_html(call: Call) -> str:
    """A waiting call with its arguments in full, as they would be executed."""
    arguments = json.dumps(call["args"], ensure_ascii=False, indent=2)
    visible = _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", arguments)
    note = f"<div>{html.escape(call['note'])}</div>" if "note" in call else ""
    return (
        f"<div><b>{html.escape(call['tool_name'])}</b> (call {html.escape(call['call_id'])}) "
        f'wants to run with:</div><pre tabindex="0">{html.escape(visible)}</pre>{note}'
    )
