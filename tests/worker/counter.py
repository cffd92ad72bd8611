"""A member machine of a group protocol that only counts, and its coordinator: the second child of the driver's seam."""

import asyncio
from dataclasses import dataclass

from coterie.engine.output import Output
from coterie.member.events import Answered, Effect, Event, Left, RequestId, Send, SetTimer, TimerFired, Unanswered
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Assigned, Leave, Rejoin, Subscribe


@dataclass
class Counter:
    sent: int = 0
    """The number and the id of the last request; all requests before it are given up."""


def step(counter: Counter, event: Event[int, str], *, now_ms: int) -> Output[None, Effect[int, str]]:
    match event:
        case Subscribe() | Rejoin() | TimerFired(timer="retry"):
            counter.sent += 1
            return Output(effects=(Send(id=RequestId(counter.sent), request=counter.sent),))
        case Answered(id=id_, response=count) if id_ == counter.sent:
            return Output(effects=(assigned(count),))
        case Unanswered(id=id_) if id_ == counter.sent:
            return Output(effects=(SetTimer(timer="retry", at_ms=now_ms + 1),))
        case Leave():
            return Output(effects=(Left(),))
        case _:
            return Output()


def assigned(count: int) -> Assigned:
    me, url, offset = MemberId("me"), WorkerUrl("http://me/"), ConfigOffset(0)
    return Assigned(
        member_id=me, epoch=count, jobs=NO_JOBS, leader=me, leader_url=url, config_offset=offset, token=None
    )


class CountingCoordinator:
    """Answers a request when the test does: by ``answers[number].set_result`` or ``set_exception``."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self.answers: dict[int, asyncio.Future[int]] = {}
        self.closed = False

    async def ask(self, request: int) -> int:
        self.answers[request] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(request)
        return await self.answers[request]

    async def close(self) -> None:
        self.closed = True
