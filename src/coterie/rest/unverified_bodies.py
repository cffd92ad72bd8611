"""Limits the memory for the bodies of requests whose signature covers the body.

Such a body must be read before its sender can be verified: that of a request that another worker forwards or signs.
Without a limit, forged signatures would let any client fill the memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from coterie.rest.problems import UnreadableBodyError

LONG_BODIES_MAX = 32
"""The number of long bodies that are read at the same time before their senders are verified; further ones wait."""
SHORT_BODY_MAX_BYTES = 64 * 1024
"""The size of the longest body that never waits: the server receives so much of each request anyway. So clients that
send long bodies slowly delay only other long bodies."""
TIME_LIMIT_S = 30
"""How long a long body may take, in seconds, from the begin of its reading until its sender is verified."""


class UnverifiedBodies:
    """The bodies that one application reads before their senders are verified."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(LONG_BODIES_MAX)

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """Read the body of ``request`` and verify the sender in this block. If the body is long, or its length is
        unknown, the block begins when less than :data:`LONG_BODIES_MAX` such blocks are running.

        :raises UnreadableBodyError: when the block with a long body takes more than :data:`TIME_LIMIT_S`.
        """
        if not _may_be_long(request):
            yield
            return
        async with self._turns:
            try:
                async with asyncio.timeout(TIME_LIMIT_S):
                    yield
            except TimeoutError:
                raise UnreadableBodyError(
                    f"The body was not received, or its signature not verified, within {TIME_LIMIT_S} s"
                ) from None


def _may_be_long(request: Request) -> bool:
    """Whether the body of ``request`` may have more than :data:`SHORT_BODY_MAX_BYTES`. The server has checked the two
    headers, and reads no more than they state."""
    if "transfer-encoding" in request.headers:
        return True
    return int(request.headers.get("content-length", "0")) > SHORT_BODY_MAX_BYTES
