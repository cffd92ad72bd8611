"""A stable group over TCP, and what there is of it before and after a request."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from coterie.broker.context import BrokerContext
from coterie.groups.connect.state import Group
from coterie.nouns.connect_error_codes import ConnectErrorCode as E
from coterie.nouns.ids import GroupId
from tests.broker.apis.connect_groups.worker import Worker, describe
from tests.broker.conftest import Connect, RawClient, ThreadedBroker

TOPIC = UUID(int=1)
"""The config topic of both members."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """A stable group of w0, which leads, and w1; and a stranger that has not joined. Each has its own connection."""

    broker: ThreadedBroker
    connect: Connect
    client: RawClient
    """A further connection."""
    leader: Worker
    member: Worker
    stranger: Worker
    group_epoch: int = 0
    """The group epoch in the last response to Prepare."""

    def reconnect(self) -> None:
        """All connect again: the broker has restarted."""
        self.client, self.leader.client, self.member.client = self.connect(), self.connect(), self.connect()
        self.stranger.client = self.connect()


def scene_of(broker: ThreadedBroker, connect: Connect) -> Scene:
    leader = Worker(connect(), "w0", config_topic_id=TOPIC)
    member = Worker(connect(), "w1", instance_id="i1", config_topic_id=TOPIC)
    leader.settle()
    member.beat()
    leader.settle()
    leader.acknowledge()
    member.settle()
    stranger = Worker(connect(), "w9")
    return Scene(broker=broker, connect=connect, client=connect(), leader=leader, member=member, stranger=stranger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What there is of the group: what ConnectGroupDescribe returns, and what it does not."""

    described: Any
    """Epochs, leader, members and their jobs, without the error of the last computation."""
    assignment_error: str
    sessions: dict[str, tuple[int, int]]
    """The end of each member's session, and the number of its last request."""
    log_end: int


def picture(scene: Scene) -> Picture:
    async def look(context: BrokerContext) -> tuple[dict[str, tuple[int, int]], int]:
        def sessions_of(group: Group) -> dict[str, tuple[int, int]]:
            return {one: (session.ends_at_ms, session.request_number) for one, session in group.sessions.items()}

        assert context.connect_groups is not None
        sessions = context.connect_groups.inspect_group(GroupId("workers"), sessions_of)
        (partition,) = context.log.topics["__worker_offsets"].partitions
        return sessions or {}, partition.end_offset

    described = describe(scene.client)
    sessions, log_end = scene.broker.run(look)
    return Picture(
        described=replace(described, assignment_error="", computing_member=""),
        assignment_error=described.assignment_error, sessions=sessions, log_end=log_end,
    )  # fmt: skip


def check_members_are_served(scene: Scene) -> None:
    """The next heartbeats of both members are accepted, and each still has its jobs."""
    epochs = {one.member_id: one.member_epoch for one in describe(scene.client).members}
    for worker in (scene.leader, scene.member):
        had, worker.epoch = worker.owned, epochs[worker.member_id]
        assert had
        assert worker.beat(full=True).error_code in (E.NONE, E.COMPUTE_ASSIGNMENT)
        assert worker.owned == had
