"""Groups of the classic protocol in this broker: the machine that group hosts run, and the topic with its records."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from uuid import uuid4

from coterie.broker.groups.heartbeats import MemberRequestGaps
from coterie.broker.groups.log import GroupTopicFormat
from coterie.broker.groups.registry import Groups
from coterie.broker.storage.log import Topic
from coterie.groups.classic import machine, new_members, state
from coterie.groups.classic.log_records import decode_record, encode_record
from coterie.groups.classic.messages import (
    GroupLoaded,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    Notification,
    Record,
    Request,
    Response,
    SyncGroup,
    TimerKey,
)
from coterie.groups.classic.offset_messages import OffsetWritten, PendingOffsetWritten, TopicDeleted
from coterie.groups.classic.state import ClassicGroupSettings, Group
from coterie.groups.classic.summary import summarize_event
from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GroupId, MemberId


def _transaction_producer_of(record: Record) -> ProducerIdAndEpoch | None:
    """The producer in whose open transaction the record was written; None for a record outside of transactions."""
    return record.producer if isinstance(record, PendingOffsetWritten) else None


def _to_pending_offset(record: Record, producer: ProducerIdAndEpoch) -> Record:
    """Convert ``record``, a committed offset that was read from a batch of the producer's open transaction, to a
    pending offset.

    :raises WireError: when ``record`` is no offset.
    """
    if not isinstance(record, OffsetWritten):
        raise WireError(
            f"a record that is no committed offset ({type(record).__name__}) is in a transaction of producer "
            f"{producer.producer_id}"
        )
    return PendingOffsetWritten(producer=producer, partition=record.partition, committed_offset=record.committed_offset)


CLASSIC_TOPIC: GroupTopicFormat[Record] = GroupTopicFormat(
    name="__consumer_offsets",
    encode_record=encode_record,
    decode_record=decode_record,
    transaction_producer_of=_transaction_producer_of,
    to_pending_record=_to_pending_offset,
)
"""The topic with the records of classic groups. Name and record format are Kafka's, so that Kafka's tools for this
topic can read it."""


class ClassicMachine:
    """The machine of classic groups, as group hosts run it (:class:`GroupMachine`). It also records when members send
    requests, in ``gaps``. Senders that are not members are not recorded, because any client can send any number of
    names. A group that has only committed or pending offsets has state, but does not reserve its id: the offsets may be
    those of a connect group."""

    refusal_code_or_wait_while_loading = None
    step = staticmethod(machine.step)
    refusal_response = staticmethod(machine.refusal_response)
    apply = staticmethod(state.apply)
    may_create_group = staticmethod(new_members.may_create_group)
    event_summary = staticmethod(summarize_event)

    def __init__(self, limits: ClassicGroupSettings, topics: Mapping[str, Topic], gaps: MemberRequestGaps) -> None:
        """``topics`` is the log's own mapping of the topics by name, which contains later changes."""
        self._limits = limits
        self._topics = topics
        self._gaps = gaps

    def new_group(self, group_id: GroupId, /) -> Group:
        return Group(group_id, self._limits)

    def has_state(self, group: Group, /) -> bool:
        return not group.is_nonexistent

    def reserves_group_id(self, group: Group, /) -> bool:
        return not (group.is_nonexistent or group.has_only_offsets)

    def notifications_after_load(self, records: Sequence[Record], /) -> Sequence[Notification]:
        """GroupLoaded, then TopicDeleted for each topic that has committed or pending offsets in ``records``, but was
        deleted since the commit, even if it was created again: the broker may have crashed between the deletion of the
        topic and the deletion of its offsets."""
        return [GroupLoaded(), *(TopicDeleted(topic=name) for name in self._deleted_or_recreated_topics(records))]

    def _deleted_or_recreated_topics(self, records: Sequence[Record]) -> Sequence[str]:
        """The names of topics that have committed or pending offsets in ``records``, and that do not exist any more, or
        were deleted and created again since the commit; sorted."""
        gone: set[str] = set()
        for record in records:
            if isinstance(record, OffsetWritten | PendingOffsetWritten):
                name, topic_id = record.partition[0], record.committed_offset.topic_id
                topic = self._topics.get(name)
                if topic is None or topic_id not in (None, topic.topic_id.bytes):
                    gone.add(name)
        return sorted(gone)

    def observe_request(self, group: Group, request: Request, /) -> None:
        """Record a member's Heartbeat, JoinGroup or SyncGroup request in the statistics, and each member that a
        LeaveGroup request names by its member id. Other requests are not recorded."""
        match request:
            case Heartbeat(member_id=member_id):
                if member_id in group.members:
                    self._gaps.observe_request(group.group_id, member_id, is_heartbeat=True)
            case JoinGroup(member_id=member_id) | SyncGroup(member_id=member_id):
                if member_id in group.members:
                    self._gaps.observe_request(group.group_id, member_id, is_heartbeat=False)
            case LeaveGroup(members=leaving):
                for member in leaving:
                    self._gaps.pause_gap_at_leave(group.group_id, member.member_id)
            case _:
                pass

    def observe_response(self, group: Group, request: Request, response: Response, /) -> None:
        """Record the response to a member's JoinGroup or SyncGroup in the statistics."""
        if isinstance(response, JoinGroupResponse):
            member_id = response.member_id
        elif isinstance(request, SyncGroup):
            member_id = request.member_id
        else:
            return
        if member_id in group.members:
            self._gaps.observe_response(group.group_id, member_id)


ClassicGroups: TypeAlias = Groups[Group, Request, Notification, Record, Response, TimerKey]


def fresh_member_id(client_id: str) -> MemberId:
    """A new member id, ``<client id>-<uuid>`` as in Kafka; for a static member, ``client_id`` is its instance id."""
    return MemberId(f"{client_id}-{uuid4()}")
