"""The seams of a member machine, the same for each group protocol: its step function, and its coordinator."""

from typing import Protocol, TypeVar

from coterie.engine.output import Output
from coterie.member.events import Effect, Event, TimerT

MemberT_contra = TypeVar("MemberT_contra", contravariant=True)
RequestT = TypeVar("RequestT")
RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ResponseT_co = TypeVar("ResponseT_co", covariant=True)
ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)


class Step(Protocol[MemberT_contra, RequestT, ResponseT_contra, TimerT]):
    """The step function of a member machine: it changes ``member`` by one event, and returns the effects."""

    def __call__(
        self, member: MemberT_contra, event: Event[ResponseT_contra, TimerT], /, *, now_ms: int
    ) -> Output[None, Effect[RequestT, TimerT]]: ...


class CoordinatorClient(Protocol[RequestT_contra, ResponseT_co]):
    """The client of the group's coordinator: sends requests to it (over TCP, or simulated)."""

    async def ask(self, request: RequestT_contra, /) -> ResponseT_co:
        """Send ``request`` and return its response; other requests may be in progress. If the coordinator has moved or
        is loading, the response contains an error code, and nothing is raised.

        :raises WorldError: when the coordinator cannot be found or reached, does not respond in time, or the connection
            broke.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
