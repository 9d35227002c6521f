"""The signal: set once from anywhere, heard at once everywhere, and nothing left behind.

A wait that is not woken hangs; the tests let it hang for half a minute and then fail.
"""

from __future__ import annotations

import asyncio
import gc
import signal as signals
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

import abort_signal
from abort_signal import AbortSignal, either, ends_in_time, give_up
from tests.support import go

FOREVER = 3600.0


def patiently(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def within_half_a_minute() -> Any:
        async with asyncio.timeout(30):
            return await coroutine

    return go(within_half_a_minute())


def later(action: Any, *args: Any) -> None:
    """Do it from another thread, while this one waits."""
    threading.Timer(0.01, action, args).start()


# --- setting it -----------------------------------------------------------------------------------


def test_it_is_set_once_and_the_first_reason_stays() -> None:
    signal = AbortSignal()
    assert (signal.aborted, signal.reason) == (False, None)
    signal.abort("first")
    signal.abort("second")
    assert (signal.aborted, signal.reason) == (True, "first")


def test_without_words_there_is_still_a_reason() -> None:
    signal = AbortSignal()
    signal.abort()
    assert signal.reason == "aborted"


def test_many_threads_at_once_give_one_reason_and_one_call() -> None:
    signal, calls = AbortSignal(), []
    start = threading.Barrier(8)

    def abort(number: int) -> None:
        start.wait()
        signal.abort(f"reason {number}")

    with signal.calling(lambda: calls.append(signal.reason)):
        threads = [threading.Thread(target=abort, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls == [signal.reason]


def test_a_callback_may_abort_again() -> None:
    signal = AbortSignal()
    with signal.calling(lambda: signal.abort("again")):
        signal.abort("first")
    assert signal.reason == "first"


@pytest.mark.skipif(not hasattr(signals, "setitimer"), reason="no timer signals here")
def test_a_signal_handler_of_the_system_may_set_it_at_any_moment() -> None:
    """Also while its own thread is inside the signal's lock."""
    for _ in range(50):
        signal = AbortSignal()
        before = signals.signal(signals.SIGALRM, lambda *_: signal.abort("alarm"))  # noqa: B023
        signals.setitimer(signals.ITIMER_REAL, 0.0005)
        try:
            while not signal.aborted:
                with signal.calling(lambda: None):
                    pass
        finally:
            signals.setitimer(signals.ITIMER_REAL, 0)
            signals.signal(signals.SIGALRM, before)
        assert signal.reason == "alarm"


# --- hearing it -----------------------------------------------------------------------------------


def test_wait_returns_when_it_is_set_from_another_thread() -> None:
    signal = AbortSignal()
    later(signal.abort, "now")
    patiently(signal.wait())
    assert signal.reason == "now"


def test_wait_returns_at_once_when_it_was_set_before() -> None:
    signal = AbortSignal()
    signal.abort()
    patiently(signal.wait())


def test_several_waiters_in_several_loops_all_hear_it() -> None:
    signal = AbortSignal()
    heard: list[int] = []

    def wait_in_a_loop(number: int) -> None:
        patiently(signal.wait())
        heard.append(number)

    threads = [threading.Thread(target=wait_in_a_loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    later(signal.abort)
    for thread in threads:
        thread.join()
    assert sorted(heard) == [0, 1, 2, 3]


def test_a_sleep_says_whether_it_was_the_whole_one() -> None:
    signal = AbortSignal()
    assert patiently(signal.sleep(0)) is True
    assert patiently(signal.sleep(0.001)) is True
    later(signal.abort)
    assert patiently(signal.sleep(FOREVER)) is False
    assert patiently(signal.sleep(FOREVER)) is False


def test_a_thread_can_block_on_it() -> None:
    signal = AbortSignal()
    assert signal.wait_blocking(0) is False
    later(signal.abort)
    assert signal.wait_blocking(30) is True
    assert signal.wait_blocking() is True


def test_a_callback_is_heard_in_its_with_and_not_after_it() -> None:
    signal = AbortSignal()
    calls: list[str] = []
    with signal.calling(lambda: calls.append("gone")):
        pass
    with signal.calling(lambda: calls.append("here")):
        signal.abort()
    assert calls == ["here"]
    with signal.calling(lambda: calls.append("late")):
        assert calls == ["here", "late"]


def test_one_function_may_listen_twice() -> None:
    signal = AbortSignal()
    calls: list[str] = []

    def note() -> None:
        calls.append("called")

    with signal.calling(note):
        with signal.calling(note):
            pass
        signal.abort()
    assert calls == ["called"]


def test_a_loop_that_has_closed_is_no_error() -> None:
    signal = AbortSignal()
    loop = asyncio.new_event_loop()

    async def leave_open() -> Any:
        context = signal.future()
        context.__enter__()
        return context

    context = loop.run_until_complete(leave_open())
    loop.close()
    signal.abort()
    context.__exit__(None, None, None)


def test_a_wait_that_was_cancelled_leaves_nothing_behind() -> None:
    signal = AbortSignal()

    async def cancelled() -> None:
        task = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    patiently(cancelled())
    assert signal._callbacks == {}


# --- signals that follow others -------------------------------------------------------------------


def test_a_derived_signal_follows_and_is_not_followed() -> None:
    signal = AbortSignal()
    with signal.derived() as child:
        child.abort("the tool's time is up")
        assert not signal.aborted
    with signal.derived() as child:
        signal.abort("stop")
        assert (child.aborted, child.reason) == (True, "stop")
    with signal.derived() as child:
        assert child.reason == "stop"


def test_a_derived_signal_is_on_its_own_after_its_with() -> None:
    signal = AbortSignal()
    with signal.derived() as child:
        pass
    signal.abort()
    assert not child.aborted


def test_either_follows_both() -> None:
    for which in (0, 1):
        pair = AbortSignal(), AbortSignal()
        with either(*pair) as both:
            pair[which].abort("stop")
            assert both.reason == "stop"
        assert not pair[1 - which].aborted


def test_either_of_one_is_that_one() -> None:
    signal = AbortSignal()
    for pair in ((signal, None), (None, signal), (signal, signal)):
        with either(*pair) as both:
            assert both is signal
    with either(None, None) as fresh:
        assert not fresh.aborted


# --- waiting for work -----------------------------------------------------------------------------


def test_ends_in_time() -> None:
    async def check() -> None:
        signal = AbortSignal()
        done = asyncio.ensure_future(asyncio.sleep(0))
        assert await ends_in_time(done, signal, FOREVER)
        endless = asyncio.ensure_future(asyncio.sleep(FOREVER))
        assert not await ends_in_time(endless, signal, 0.001)
        later(signal.abort)
        assert not await ends_in_time(endless, signal)
        assert not endless.done()  # whoever asked decides what becomes of it
        await give_up(endless)
        assert endless.cancelled()
        assert await ends_in_time(done, signal)  # what has ended has ended in time

    patiently(check())


def test_what_ignores_a_cancellation_is_left_alone_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abort_signal, "GRACE_S", 0.01)
    unhandled: list[Any] = []

    async def stubborn(end: asyncio.Event) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("nobody's error")

    async def check() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
        end = asyncio.Event()
        task = asyncio.ensure_future(stubborn(end))
        await asyncio.sleep(0)
        await give_up(task)
        assert not task.done()
        end.set()
        await asyncio.wait({task})
        del task
        gc.collect()

    patiently(check())
    assert unhandled == []
