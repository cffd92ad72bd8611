"""Groups of the classic protocol in this broker: the machine that the group host runs, and the topic of its records."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from uuid import uuid4

from coterie.broker.groups.heartbeats import HeartbeatGaps
from coterie.broker.groups.log import GroupTopic
from coterie.broker.groups.registry import Groups
from coterie.broker.storage.log import Topic
from coterie.groups.classic import machine, newcomers, state
from coterie.groups.classic.lines import decode_line, encode_line
from coterie.groups.classic.messages import (
    GroupLoaded,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    News,
    Record,
    Request,
    Response,
    SyncGroup,
    TimerKey,
)
from coterie.groups.classic.offset_messages import OffsetWritten, TopicDeleted
from coterie.groups.classic.state import Group, Limits
from coterie.groups.classic.summary import summary
from coterie.nouns.ids import GroupId, MemberId

CLASSIC_TOPIC: GroupTopic[Record] = GroupTopic(
    name="__consumer_offsets", encode_line=encode_line, decode_line=decode_line
)
"""Kafka's topic name and record format, so that tools for that topic can read it."""


class ClassicMachine:
    """The machine of classic groups. It records how regularly members send requests, but nothing about other senders:
    they can send any number of names."""

    step = staticmethod(machine.step)
    refused = staticmethod(machine.refused)
    apply = staticmethod(state.apply)
    founds = staticmethod(newcomers.founds)
    summary = staticmethod(summary)

    def __init__(self, limits: Limits, topics: Mapping[str, Topic], gaps: HeartbeatGaps) -> None:
        self._limits = limits
        self._topics = topics
        self._gaps = gaps

    def fresh(self, group_id: GroupId, /) -> Group:
        return Group(group_id, self._limits)

    def is_known(self, group: Group, /) -> bool:
        return not group.is_unheard_of

    def loaded(self, records: Sequence[Record], /) -> Sequence[News]:
        """GroupLoaded, and TopicDeleted for each topic in ``records`` that was deleted: a crash may have come between
        the deletion of a topic and the deletion of its offsets."""
        return [GroupLoaded(), *(TopicDeleted(topic=name) for name in self._topics_gone(records))]

    def _topics_gone(self, records: Sequence[Record]) -> Sequence[str]:
        """Names of topics in ``records`` that were deleted, or deleted and created again, since; sorted."""
        gone: set[str] = set()
        for record in records:
            if isinstance(record, OffsetWritten):
                name, topic_id = record.partition[0], record.committed.topic_id
                topic = self._topics.get(name)
                if topic is None or topic_id not in (None, topic.topic_id.bytes):
                    gone.add(name)
        return sorted(gone)

    def on_asked(self, group: Group, request: Request, /) -> None:
        match request:
            case Heartbeat(member_id=member_id):
                if member_id in group.members:
                    self._gaps.asked(group.group_id, member_id, is_heartbeat=True)
            case JoinGroup(member_id=member_id) | SyncGroup(member_id=member_id):
                if member_id in group.members:
                    self._gaps.asked(group.group_id, member_id, is_heartbeat=False)
            case LeaveGroup(members=leaving):
                for member in leaving:
                    self._gaps.left(group.group_id, member.member_id)
            case _:
                pass

    def on_answered(self, group: Group, request: Request, response: Response, /) -> None:
        if isinstance(response, JoinGroupResponse):
            member_id = response.member_id
        elif isinstance(request, SyncGroup):
            member_id = request.member_id
        else:
            return
        if member_id in group.members:
            self._gaps.answered(group.group_id, member_id)


ClassicGroups: TypeAlias = Groups[Group, Request, News, Record, Response, TimerKey]


def fresh_member_id(client_id: str) -> MemberId:
    """``<client id>-<uuid>``, Kafka's format of a member id."""
    return MemberId(f"{client_id}-{uuid4()}")
