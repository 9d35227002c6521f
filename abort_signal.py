"""One flag that says "stop", heard at once by coroutines, by threads and by other signals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# How long work that was cancelled may take to tidy up before nobody waits for it any more.
GRACE_S = 0.25


class AbortSignal:
    """Set once, from any thread, with a reason; never cleared.

    A tool that is a coroutine can ``await signal.sleep(...)``; one that runs in a thread looks at
    ``signal.aborted`` between its steps or calls ``signal.wait_blocking(...)``.
    """

    def __init__(self) -> None:
        self._aborted = False
        self._lock = threading.RLock()  # a signal handler may abort while its thread holds it
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._reason: str | None = None

    @property
    def aborted(self) -> bool:
        return self._aborted

    @property
    def reason(self) -> str | None:
        """Why, in words; None until the signal is set."""
        return self._reason

    def abort(self, reason: str = "aborted") -> None:
        """Set the signal. The first call decides the reason; later ones change nothing."""
        with self._lock:
            if self._aborted:
                return
            self._reason = reason
            self._aborted = True
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` when the abort comes in this ``with``, or has come before it.

        It is called from the aborting thread, and twice when both happen at the same moment.
        """
        key = object()  # the same function may be registered twice
        with self._lock:
            self._callbacks[key] = callback
        try:
            if self.aborted:
                callback()
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)

    @contextmanager
    def future(self) -> Iterator[asyncio.Future[None]]:
        """A future of the running loop that is done once the signal is set."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # that loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future)

        with self.calling(wake):
            yield future

    async def wait(self) -> None:
        """Return when the signal is set."""
        with self.future() as aborted:
            await aborted

    async def sleep(self, seconds: float) -> bool:
        """Sleep, but wake at once on abort. True when the whole time has passed."""
        with self.future() as aborted:
            await asyncio.wait({aborted}, timeout=seconds)
        return not self.aborted

    def wait_blocking(self, timeout: float | None = None) -> bool:
        """Block this thread for ``timeout`` seconds or until the abort; True when aborted."""
        woken = threading.Event()
        with self.calling(woken.set):
            return woken.wait(timeout)

    @contextmanager
    def derived(self) -> Iterator[AbortSignal]:
        """A signal that follows this one and can also be set alone: for one tool's time limit."""
        child = AbortSignal()
        with self.calling(lambda: child.abort(self._reason or "aborted")):
            yield child


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@contextmanager
def either(one: AbortSignal | None, other: AbortSignal | None) -> Iterator[AbortSignal]:
    """A signal that follows both: one of them where only that is given, or a new one."""
    if one is None or other is None or one is other:
        yield one or other or AbortSignal()
        return
    with other.derived() as both, one.calling(lambda: both.abort(one.reason or "aborted")):
        yield both


async def ends_in_time(
    task: asyncio.Future[Any], signal: AbortSignal, timeout_s: float | None = None
) -> bool:
    """Wait until the task ends (True), or until the abort or the time limit comes first."""
    # Task and abort resolve the same future: to wait for two would take a round of the loop more.
    with signal.future() as over:
        task.add_done_callback(lambda _: _resolve(over))
        if timeout_s is None:
            await over
        else:
            await asyncio.wait({over}, timeout=timeout_s)
    return task.done()


def abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task that nobody waits for; its late error is nobody's. No effect on a done one."""
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())


async def give_up(task: asyncio.Future[Any]) -> None:
    """Cancel a task and give it GRACE_S to end."""
    abandon(task)
    await asyncio.wait({task}, timeout=GRACE_S)
