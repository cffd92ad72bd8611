"""Calls the code of plug-ins on daemon threads, one for each call, with time limits.

Python cannot end a thread. A call that exceeds its time limit is *abandoned*: its caller gets a
:class:`PluginTimeoutError`, and its thread is *lost* until the plug-in returns. Threads of a ThreadPoolExecutor cannot
be used: the interpreter joins them at its exit, so one lost thread would keep the process for ever.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ParamSpec, TypeAlias, TypeVar

from coterie.nouns.errors import WorldError
from coterie.spark.call_ledger import CallId, CallLedger, CallQueueSpec, CallStage, ExpiredCall
from coterie.spark.failures import hide_secrets_in_exceptions
from coterie.spark.fence import FencedError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CLOSED_MESSAGE = "Spark is not running on this worker: it is being shut down"
"""The message for a call that cannot start because the runtime is closed."""


class AbandonedCallError(WorldError):
    """A call was abandoned: ``on_abandon`` of :meth:`PluginCalls.submit` was called, and no result will follow."""


class PluginTimeoutError(AbandonedCallError):
    """A call into a plug-in has exceeded its time limit, and was abandoned. If the call had begun, the message names
    the line of code in which its thread was, and the stage if it was in one."""


class NoThreadError(AbandonedCallError):
    """A call could not begin, because the system starts no further thread, and was abandoned."""


OnAbandon: TypeAlias = Callable[[AbandonedCallError], None]
"""Called with the error when a call is abandoned."""


class PluginCall:
    """One call of a function that runs code of a plug-in, on a separate thread. Its methods are safe on any thread."""

    def __init__(
        self, calls: "PluginCalls", subject: str, function: Callable[[], Any], on_abandon: OnAbandon | None
    ) -> None:
        self.subject = subject
        """The object of the call in messages, such as ``connector flights``."""
        self.future: Future[Any] = Future()
        """The result of the call, or its exception."""
        self.call_id: CallId | None = None
        """The id of the call in the ledger; None if the calls were closed (:meth:`PluginCalls.close`) before this call
        was submitted, or their time limits could not be watched."""
        self.thread: threading.Thread | None = None
        """The thread that runs the call; None while the call waits."""
        self.function = function
        self.on_abandon = on_abandon
        self._calls = calls

    def limit_remaining_time(self, timeout_s: float) -> None:
        """The result of the call is no longer needed: abandon the call ``timeout_s`` seconds from now, unless it
        returns before or its time limit is over before. Never waits."""
        self._calls.shorten_time_limit(self, time.monotonic() + timeout_s)

    @property
    def has_function_ended(self) -> bool:
        """Whether the function of the call has returned, or will never run. A call that was abandoned while its
        function ran has not ended before the function returns."""
        return self.future.done() and (self.thread is None or not self.thread.is_alive())

    @contextmanager
    def enter_stage(self, name: str, *, has_time_limit: bool = True) -> Iterator[None]:
        """Context manager: the block is the stage ``name`` of this call (:func:`plugin_stage`). If ``has_time_limit``
        is False, only the time limit of the whole call applies in the stage, and in stages within it.

        :raises FencedError: when the call was abandoned before.
        """
        self._calls.begin_stage_or_raise(self, name, has_time_limit=has_time_limit)
        try:
            yield
        finally:
            self._calls.end_stage_unless_abandoned(self)


class PluginCalls:
    """The calls of one worker into its plug-ins. Each stage of a call has a time limit, unless :meth:`submit` sets one
    for the whole call. In an abandoned call the begin of a stage raises FencedError. All methods are safe on any
    thread."""

    def __init__(self, timeout_ms: int, on_lost_count: Callable[[int], None] = lambda _: None) -> None:
        """``timeout_ms`` is the time limit of each stage of a call. ``on_lost_count`` is called with
        :attr:`lost_thread_count` whenever it has changed."""
        self.timeout_ms = timeout_ms
        """The time limit of each stage of a call, for stages that begin from now on."""
        self._on_lost_count = on_lost_count
        self._ledger = CallLedger()
        self._call_by_id: dict[CallId, PluginCall] = {}
        self._changed = threading.Condition()
        """Guards all fields. Notified when a call was added or has ended, and when a time limit has changed."""
        self._report_lock = threading.Lock()
        """Held while ``on_lost_count`` is called, so that the last call has the newest number."""
        self._reported_lost_count = 0
        self._is_closed = False
        self._timer_thread: threading.Thread | None = None
        self._unstarted: list[tuple[PluginCall, NoThreadError]] = []
        """Calls for which the system has started no thread, each with its error. They are abandoned by the
        thread that watches the time limits: the caller of a method may hold locks that ``on_abandon`` needs."""

    async def call(
        self,
        queue: CallQueueSpec,
        subject: str,
        function: Callable[[], T],
        *,
        stage: str | None = None,
        on_abandon: OnAbandon | None = None,
    ) -> T:
        """Run ``function`` on a thread (:meth:`submit`), and return its result or raise its exception. If the caller is
        cancelled before ``queue`` lets the call start, ``function`` is not run.

        :raises AbandonedCallError: when the call was abandoned.
        :raises WorldError: when the calls were closed before ``function`` was run, or for the first call no thread can
            be started that watches the time limits.
        """
        call = self.submit(queue, subject, function, stage=stage, on_abandon=on_abandon)
        result: T = await result_of(call)
        return result

    def submit(
        self,
        queue: CallQueueSpec,
        subject: str,
        function: Callable[[], object],
        *,
        stage: str | None = None,
        timeout_s: float | None = None,
        on_abandon: OnAbandon | None = None,
    ) -> PluginCall:
        """Run ``function`` on a new daemon thread as soon as ``queue`` permits, and return the call at once.

        :param subject: the object of the call in messages, such as ``connector flights``.
        :param stage: the stage of the whole call (:func:`plugin_stage`); None when ``function`` begins stages itself.
        :param timeout_s: the time limit of the whole call, in seconds from now; ``stage`` and the stages within it then
            have no time limits. None: the whole call has no time limit, and each stage has one.
        :param on_abandon: called with the error on another thread when the call is abandoned, also because the
            system starts no further thread, and before the call's caller gets the exception. It must not wait, and
            raise no exception.
        """
        if stage is not None:
            function = _wrap_in_stage(stage, function, has_time_limit=timeout_s is None)
        call = PluginCall(self, subject, function, on_abandon)
        ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            failure = self._ensure_timer_and_explain_refusal(subject)
            if failure is None:
                call.call_id = self._ledger.add(queue, ends_at_s=ends_at_s)
                self._call_by_id[call.call_id] = call
                self._start_permitted_calls()
                self._changed.notify_all()
                return call
        call.future.set_exception(WorldError(failure))
        return call

    def _ensure_timer_and_explain_refusal(self, subject: str) -> str | None:
        """Start the thread that watches the time limits, unless it runs. The caller holds the lock.

        Returns why a call of ``subject`` cannot begin: the calls are closed, or the system starts no further thread;
        None if it can begin.
        """
        if self._is_closed:
            return CLOSED_MESSAGE
        if self._timer_thread is None:
            timer_thread = threading.Thread(target=self._watch_time_limits, name="coterie-call-limits", daemon=True)
            try:
                timer_thread.start()
            except RuntimeError as error:
                return _no_thread_text(subject, error)
            self._timer_thread = timer_thread
        return None

    @property
    def lost_thread_count(self) -> int:
        """Number of lost threads: abandoned calls that have not returned."""
        with self._changed:
            return self._ledger.lost_thread_count

    def close(self) -> None:
        """Refuse further calls, and let those fail that still wait. Running calls continue."""
        with self._changed:
            self._is_closed = True
            waiting = [self._call_by_id.pop(call_id) for call_id in self._ledger.remove_waiting_calls()]
            self._changed.notify_all()
        for call in waiting:
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(WorldError(CLOSED_MESSAGE))

    def wait_or_abandon_running_calls(self, timeout_s: float) -> None:
        """After :meth:`close`: wait ``timeout_s`` at most until each running call has returned or exceeded its time
        limit. Calls that still run then are abandoned: their threads end with the process. Logs all calls that have not
        returned."""
        with self._changed:
            assert self._is_closed
            self._changed.wait_for(lambda: not self._ledger.running_call_ids(), timeout_s)
            for call_id in self._ledger.running_call_ids():
                self._ledger.shorten_time_limit(call_id, time.monotonic())
            self._changed.notify_all()
        if self._timer_thread is not None:
            self._timer_thread.join()
        with self._changed:
            subjects = sorted(call.subject for call in self._call_by_id.values())
        if subjects:
            log.warning(
                "%d calls into plug-ins have not returned and are abandoned; their threads end with this process: %s",
                len(subjects),
                ", ".join(subjects),
            )

    # -- called by PluginCall and by threads --------------------------------------------------------------------------

    def shorten_time_limit(self, call: PluginCall, ends_at_s: float) -> None:
        """Shorten the time limit of ``call`` (:meth:`CallLedger.shorten_time_limit`)."""
        with self._changed:
            if call.call_id is not None:
                self._ledger.shorten_time_limit(call.call_id, ends_at_s)
                self._changed.notify_all()

    def begin_stage_or_raise(self, call: PluginCall, name: str, *, has_time_limit: bool) -> None:
        """Begin a stage of ``call``, which runs on the present thread.

        :raises FencedError: when the call was abandoned; ``on_abandon`` has returned then.
        """
        assert call.call_id is not None
        with self._changed:
            now_s = time.monotonic()
            ends_at_s = now_s + self.timeout_ms / 1000 if has_time_limit else None
            stage = CallStage(name=name, began_at_s=now_s, deadline_s=ends_at_s)
            if self._ledger.begin_stage_unless_timed_out(call.call_id, stage):
                self._changed.notify_all()
                return
        # Before `on_abandon` has closed the fence of the caller, this error would look like one of a sink.
        futures.wait([call.future])
        raise FencedError

    def end_stage_unless_abandoned(self, call: PluginCall) -> None:
        """End the innermost stage of ``call``, which runs on the present thread. Does nothing when the call was
        abandoned."""
        assert call.call_id is not None
        with self._changed:
            now_s = time.monotonic()
            self._ledger.end_stage_unless_timed_out(
                call.call_id, now_s=now_s, outer_deadline_s=now_s + self.timeout_ms / 1000
            )
            self._changed.notify_all()

    def _start_permitted_calls(self) -> None:
        """Start a thread for each call that may start. The caller holds the lock."""
        for call_id in self._ledger.mark_next_calls_running(time.monotonic()):
            call = self._call_by_id[call_id]
            if not call.future.set_running_or_notify_cancel():
                self._ledger.remove_and_return_whether_in_time(call_id)
                del self._call_by_id[call_id]
                continue
            call.thread = threading.Thread(
                target=self._run_call, args=(call,), name=f"coterie {call.subject}", daemon=True
            )
            try:
                call.thread.start()
            except RuntimeError as error:
                self._ledger.remove_and_return_whether_in_time(call_id)
                del self._call_by_id[call_id]
                call.thread = None
                self._unstarted.append((call, NoThreadError(_no_thread_text(call.subject, error))))
                self._changed.notify_all()

    def _run_call(self, call: PluginCall) -> None:
        """Run the function of ``call`` on the present thread. The result of an abandoned call is dropped."""
        _current.call = call
        result: object = None
        error: Exception | None = None
        try:
            result = call.function()
        except BaseException as raised:  # noqa: BLE001 - a plug-in may raise any exception, SystemExit too
            error = as_exception(raised)
        assert call.call_id is not None
        with self._changed:
            is_needed = self._ledger.remove_and_return_whether_in_time(call.call_id)
            del self._call_by_id[call.call_id]
            if not self._is_closed:
                self._start_permitted_calls()
            self._changed.notify_all()
        if not is_needed:
            log.info("The call for %s, which was abandoned, has returned; its result is not used", call.subject)
            self._report_lost_count_if_changed()
        elif error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    def _watch_time_limits(self) -> None:
        """Abandon calls at the ends of their time limits, and start waiting calls when running ones no longer count
        toward the maximum of their queue. Runs on a separate thread until :meth:`close` was called and no call runs."""
        while True:
            with self._changed:
                now_s = time.monotonic()
                abandoned_calls = [
                    (self._call_by_id[expired.call_id], expired) for expired in self._ledger.expire_calls(now_s)
                ]
                for call, expired in abandoned_calls:
                    if call.thread is None:
                        del self._call_by_id[expired.call_id]
                if not self._is_closed:
                    self._start_permitted_calls()
                unstarted, self._unstarted = self._unstarted, []
                if not abandoned_calls and not unstarted:
                    if self._is_closed and not self._ledger.running_call_ids():
                        return
                    due_at_s = self._ledger.next_change_at_s(now_s)
                    self._changed.wait(None if due_at_s is None else max(0, due_at_s - now_s))
                    continue
                self._changed.notify_all()
            # First the number: a caller that has received its error finds the lost thread counted.
            try:
                self._report_lost_count_if_changed()
            finally:
                for call, expired in abandoned_calls:
                    self._abandon_call(call, expired)
                for call, error in unstarted:
                    log.error("%s", error)
                    _call_on_abandon_and_fail_call(call, error)

    def _abandon_call(self, call: PluginCall, expired: ExpiredCall) -> None:
        """Call ``on_abandon`` of ``call``, then let the caller of ``call`` get a PluginTimeoutError. If the call had
        begun, log where its thread is."""
        if call.thread is None:
            message = f"The call for {call.subject} was ended before it began: no thread was free in time"
        else:
            message = f"{_timeout_text(call.subject, expired)}{_code_position_of_thread(call.thread)}"
            if expired.has_stage_expired:
                message += ". Repair the plug-in, or raise plugin.call.timeout.ms of the workers"
            log.error("%s. The thread is lost until the plug-in returns:\n%s", message, _stack_of_thread(call.thread))
        _call_on_abandon_and_fail_call(call, PluginTimeoutError(message))

    def _report_lost_count_if_changed(self) -> None:
        """Call ``on_lost_count`` if :attr:`lost_thread_count` has changed since ``on_lost_count`` was last called."""
        with self._report_lock:
            if (lost_thread_count := self.lost_thread_count) != self._reported_lost_count:
                self._reported_lost_count = lost_thread_count
                self._on_lost_count(lost_thread_count)


def _call_on_abandon_and_fail_call(call: PluginCall, error: AbandonedCallError) -> None:
    """Call ``on_abandon`` of ``call``, then let the caller of ``call`` get ``error``, unless the caller has cancelled
    the call before it began."""
    if call.on_abandon is not None:
        call.on_abandon(error)
    if call.future.running() or call.future.set_running_or_notify_cancel():
        call.future.set_exception(error)


class _CurrentCall(threading.local):
    """For each thread, the call that the thread runs; None on a thread that runs no call."""

    call: PluginCall | None = None


_current = _CurrentCall()


@contextmanager
def plugin_stage(name: str) -> Iterator[None]:
    """Context manager: the block runs code of a plug-in, in the stage ``name``, which has its own time limit. At the
    end of the block the time limit of the stage around it begins again. Without effect on a thread that runs no
    :class:`PluginCall`.

    :raises FencedError: when the call was abandoned before.
    """
    if (call := _current.call) is None:
        yield
        return
    with call.enter_stage(name):
        yield


@contextmanager
def clean_up_stage_even_if_abandoned(name: str) -> Iterator[None]:
    """As :func:`plugin_stage`, for a block that releases what the call has opened: the block also runs when the call
    was abandoned before, then without a time limit."""
    with ExitStack() as stack:
        with suppress(FencedError):
            stack.enter_context(plugin_stage(name))
        yield


def wrap_in_plugin_stage(name: str, function: Callable[P, T]) -> Callable[P, T]:
    """A function that calls ``function`` in the stage ``name`` (:func:`plugin_stage`)."""

    def call_in_stage(*args: P.args, **kwargs: P.kwargs) -> T:
        with plugin_stage(name):
            return function(*args, **kwargs)

    return call_in_stage


async def result_of(call: PluginCall) -> Any:
    """Await the result of ``call``. Raises the exception of the call, in which the values of references to secrets are
    hidden, and the exceptions of :meth:`PluginCalls.call`."""
    with hide_secrets_in_exceptions():
        return await asyncio.wrap_future(call.future)


def as_exception(error: BaseException) -> Exception:
    """``error`` itself if a future can have it as its exception; else (a StopIteration, or a BaseException such as
    SystemExit) a RuntimeError with its type and message."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _no_thread_text(subject: str, error: RuntimeError) -> str:
    """The message about a call of ``subject`` for which, because of ``error``, the system starts no thread."""
    return (
        f"The call for {subject} did not begin: the system starts no further thread ({error}). Raise the worker's "
        "limit of threads"
    )


def _timeout_text(subject: str, expired: ExpiredCall) -> str:
    """The first part of the message about a call of ``subject`` that has exceeded a time limit."""
    if expired.stage is None:
        return f"The call for {subject} has not returned in time"
    elapsed_ms = (time.monotonic() - expired.stage.began_at_s) * 1000
    return f"The plug-in of {subject} has not returned from {expired.stage.name} after {elapsed_ms:.0f} ms"


def _code_position_of_thread(thread: threading.Thread) -> str:
    """The innermost Python function that ``thread`` runs now, as the end of a sentence; empty if it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else f": it is in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _stack_of_thread(thread: threading.Thread) -> str:
    """The Python stack of ``thread`` as text; empty if the thread has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame))


def _wrap_in_stage(stage: str, function: Callable[[], object], *, has_time_limit: bool) -> Callable[[], object]:
    """A function that calls ``function`` in the stage ``stage`` of the present call
    (:meth:`PluginCall.enter_stage`)."""

    def call_in_stage() -> object:
        assert _current.call is not None
        with _current.call.enter_stage(stage, has_time_limit=has_time_limit):
            return function()

    return call_in_stage
