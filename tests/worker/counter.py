"""A member machine of a group protocol that only counts, and its coordinator: the second child of the driver's seam."""

import asyncio
from dataclasses import dataclass

from coterie.engine.output import Output
from coterie.member.events import (
    Effect,
    Event,
    MemberEnded,
    RequestFailed,
    RequestId,
    ResponseReceived,
    Send,
    SetTimer,
    TimerFired,
)
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Assigned, Leave, Rejoin, SetWorkerState


@dataclass
class CountingMember:
    sent: int = 0
    """The number and the id of the last request; all earlier requests are abandoned."""


def step(counter: CountingMember, event: Event[int, str], *, now_ms: int) -> Output[None, Effect[int, str]]:
    match event:
        case SetWorkerState() | Rejoin() | TimerFired(timer="retry"):
            counter.sent += 1
            return Output(effects=(Send(id=RequestId(counter.sent), request=counter.sent),))
        case ResponseReceived(id=id_, response=count) if id_ == counter.sent:
            return Output(effects=(assigned(count),))
        case RequestFailed(id=id_) if id_ == counter.sent:
            return Output(effects=(SetTimer(timer="retry", at_ms=now_ms + 1),))
        case Leave():
            return Output(effects=(MemberEnded(),))
        case _:
            return Output()


def assigned(count: int) -> Assigned:
    me, url, offset = MemberId("me"), WorkerUrl("http://me/"), ConfigOffset(0)
    return Assigned(
        member_id=me, epoch=count, jobs=NO_JOBS, leader=me, leader_url=url, config_offset=offset, protocol_details=None
    )


class CountingCoordinator:
    """Responds to a request when the test calls ``answers[number].set_result`` or ``set_exception``."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[int] = asyncio.Queue()
        self.answers: dict[int, asyncio.Future[int]] = {}
        self.closed = False

    async def ask(self, request: int) -> int:
        self.answers[request] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait(request)
        return await self.answers[request]

    async def close(self) -> None:
        self.closed = True
