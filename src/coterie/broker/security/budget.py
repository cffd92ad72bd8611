"""Budgets of bytes in flight, by connection and by principal: a request that would exceed a budget waits. Bytes of a
request are in flight from the time it is read until its response is ready; those of a response until it is written.
"""

import asyncio
import logging
from collections.abc import Callable

from coterie.nouns.log_rate_limit import LogRateLimit

logger = logging.getLogger(__name__)


class ByteBudget:
    """The bytes that one connection or one principal may have in flight. A call that takes bytes must be followed by a
    call that releases them."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._waiting: list[asyncio.Future[None]] = []
        self.bytes_in_flight = 0
        """The bytes that were taken and not released yet."""

    def has_capacity(self, size: int) -> bool:
        """Whether ``size`` more bytes may be in flight without exceeding the budget. If no bytes are in flight, any
        size may: otherwise a request larger than the budget could never run."""
        return not self.bytes_in_flight or self.bytes_in_flight + size <= self._size_max

    async def take(self, size: int, *, may_exceed: Callable[[], bool] = lambda: False) -> None:
        """Wait until the budget has capacity for ``size`` bytes, or ``may_exceed`` returns True; then take the
        bytes. ``may_exceed`` is called at the start and whenever bytes are released."""
        await self._wait_until(lambda: self.has_capacity(size) or may_exceed())
        self.bytes_in_flight += size

    def take_unchecked(self, size: int) -> None:
        """Take ``size`` bytes at once, even if the budget is exceeded: for bytes that are already in memory."""
        self.bytes_in_flight += size

    def release(self, size: int) -> None:
        """Return ``size`` bytes that were taken, and let waiting calls check their conditions again."""
        self.bytes_in_flight -= size
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` returns True. It is called at the start and whenever bytes are released."""
        while not condition():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                self._waiting.remove(turn)


class PrincipalByteBudget(ByteBudget):
    """The budget of one principal over all of its connections. Requests may use the whole budget. Responses that
    reserve bytes (those with records) leave a quarter of it to requests. So a client that reads no responses delays its
    principal's fetches, but no heartbeat. `take_for_response` gives bytes only to the response that is sent next on its
    connection; the others wait until they are next."""

    def __init__(self, name: str, size_max: int, log_limit: LogRateLimit | None = None) -> None:
        """``log_limit`` limits the log messages of this budget, together with those of the other budgets that have the
        same ``log_limit``. None: the limit counts the messages of this budget only."""
        super().__init__(size_max)
        self._name = name
        self._log_limit = LogRateLimit() if log_limit is None else log_limit
        self._responses_size_max = size_max - size_max // 4
        """The bytes in flight, of requests and responses together, above which a response waits, unless no other
        response is in flight."""
        self._response_bytes_in_flight = 0
        self._waiting_response_count = 0
        """The number of responses that wait."""

    async def take_for_response(self, size: int, *, is_next_response: Callable[[], bool]) -> None:
        """Wait until a response of ``size`` bytes may be created, and take the bytes. Only the response that is sent
        next on its connection gets bytes: a later response would hold its bytes while it waits for the earlier ones, a
        deadlock."""
        await self._wait_until(is_next_response)
        if not self._has_capacity_for_response(size):
            if not self._waiting_response_count:
                self._log_delay(
                    "response",
                    f"Fetch responses for {self._name} are delayed until its clients have read earlier responses: "
                    f"{self.bytes_in_flight} bytes of its requests and responses are in flight",
                )
            self._waiting_response_count += 1
            try:
                await self._wait_until(lambda: self._has_capacity_for_response(size))
            finally:
                self._waiting_response_count -= 1
        self._response_bytes_in_flight += size
        self.bytes_in_flight += size

    def release_response(self, size: int) -> None:
        """Return ``size`` bytes that :meth:`take_for_response` has taken."""
        self._response_bytes_in_flight -= size
        self.release(size)

    def log_delayed_request(self, peer: str) -> None:
        """Log that the connection of ``peer``, an address, is not read, because this budget has no capacity for its
        next request: as a warning at most once a minute for each principal, else at debug level."""
        self._log_delay(
            "request",
            f"Connection {peer} is not read until responses are sent: with its next request, the requests and "
            f"responses in flight of {self._name} would exceed the maximum; they have {self.bytes_in_flight} bytes",
        )

    def _log_delay(self, kind: str, message: str) -> None:
        """Log ``message`` about a delayed request or response, as :meth:`log_delayed_request` does. A client can cause
        any number of such delays."""
        now_s = asyncio.get_running_loop().time()
        self._log_limit.warn_or_debug(logger, f"{kind} {self._name}", message, more="more such delays", now_s=now_s)

    def _has_capacity_for_response(self, size: int) -> bool:
        """Whether a response of ``size`` bytes may be created now: it leaves a quarter of the budget free, or no other
        response is in flight."""
        # If no other response is in flight, any size is allowed: otherwise a large response could never be sent.
        return not self._response_bytes_in_flight or self.bytes_in_flight + size <= self._responses_size_max


class RequestBudgetShare:
    """The bytes that one request has taken of two budgets: in the budget of its connection, the bytes of the request
    and of its response; in the budget of its principal, the bytes that are reserved for its response. The bytes of the
    request itself in the principal's budget are not part of the share: the connection releases them. `release` gives
    back only the bytes of the principal's budget; the connection also releases the response's bytes in its own
    budget."""

    __slots__ = ("_connection_budget", "_is_next_response", "_principal_budget", "_response_size", "_size")

    def __init__(
        self,
        connection_budget: ByteBudget,
        principal_budget: PrincipalByteBudget,
        size: int,
        *,
        is_next_response: Callable[[], bool],
    ) -> None:
        """``size`` bytes, those of the request, are already taken from both budgets. ``is_next_response`` returns
        whether this request's response is sent next on its connection; whenever its result changes, the connection also
        releases bytes of both budgets, so that it is called again."""
        self._connection_budget = connection_budget
        self._principal_budget = principal_budget
        self._size = size
        self._response_size = 0
        self._is_next_response = is_next_response

    async def reserve_response_bytes(self, size: int) -> None:
        """Wait until a response of ``size`` bytes may be created, and take the bytes from the budgets of the connection
        and of the principal. The response that is sent next on the connection does not wait for the connection's
        budget: the other responses are sent after it, and would never release their bytes."""
        await self._connection_budget.take(size, may_exceed=self._is_next_response)
        self._size += size
        await self._principal_budget.take_for_response(size, is_next_response=self._is_next_response)
        self._response_size += size

    def replace_with_response_bytes(self, response_size: int) -> None:
        """In the connection's budget, replace the bytes of the request and those reserved for the response by
        ``response_size``, the bytes of the response. The connection releases these when the response is written."""
        self._connection_budget.take_unchecked(response_size)
        self._connection_budget.release(self._size)

    def release(self) -> None:
        """Return the response's reserved bytes to the principal's budget: the response is written or was abandoned. The
        bytes in the connection's budget stay taken: the connection releases them. Later calls change nothing."""
        self._principal_budget.release_response(self._response_size)
        self._response_size = 0


class PrincipalByteBudgets:
    """The budgets of all principals that have connections, one for each; of clients that are not authenticated, one for
    each IP address."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._log_limit = LogRateLimit()
        """Outlives the budgets, because a client may connect again and again."""
        self._budgets: dict[str, tuple[PrincipalByteBudget, int]] = {}
        """By name: the budget, and the number of connections that use it."""

    def acquire(self, name: str) -> PrincipalByteBudget:
        """The budget of ``name``, which is shared by all connections that acquire this name. Each call needs a matching
        :meth:`release`."""
        budget, members = self._budgets.get(name, (PrincipalByteBudget(name, self._size_max, self._log_limit), 0))
        self._budgets[name] = (budget, members + 1)
        return budget

    def release(self, name: str) -> None:
        """End one use of the budget of ``name``; the last release removes the budget."""
        budget, members = self._budgets.pop(name)
        if members > 1:
            self._budgets[name] = (budget, members - 1)
