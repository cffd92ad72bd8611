"""Makes a worker's membership of its group: the member machine of the group's protocol, and the client of its
coordinator."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.config.worker import WorkerSettings
from coterie.herder.seams import Membership
from coterie.kafka.connect_coordinator import KafkaConnectCoordinator
from coterie.kafka.coordinator import KafkaCoordinator
from coterie.member.classic.machine import step as classic_step
from coterie.member.classic.state import Member as ClassicMember
from coterie.member.classic.state import MemberSettings
from coterie.member.connect.machine import step as connect_step
from coterie.member.connect.state import Member as ConnectMember
from coterie.member.connect.state import MemberSettings as ConnectMemberSettings
from coterie.member.connect.state import OfferedAssignor
from coterie.nouns.ids import MemberId
from coterie.nouns.membership import ConnectPlaceHandover, GroupProtocolName, Handover, PlaceHandover
from coterie.worker.membership import GroupMembership

CONNECT_OPEN_TIMEOUT_MS = 3_000
"""The time limit for finding the coordinator of a connect group, and for opening a connection to it. A constant,
because the coordinator decides the session timeout: by default 10 s, and at least 6 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSpec:
    """The input from which a worker's membership of its group is created (:func:`group_membership`)."""

    settings: WorkerSettings
    member: MemberSettings
    """The settings of a member of a classic group; a member of a connect group uses a part of them."""
    client_id: str
    place: Handover | None = None
    """The membership of the worker's previous process, which the new one continues; None: the worker joins as a new
    member. Of the same protocol as in ``settings``."""
    assignors: Sequence[OfferedAssignor] = ()
    """The assignors that the worker offers to a connect group, the preferred one first."""
    config_topic_id: bytes | None = None
    """The topic id of the worker's config topic, 16 bytes; None in a classic group, or if it is not known."""


MembershipFactory: TypeAlias = Callable[[MembershipSpec], Membership]
"""Creates the membership of a worker."""


def group_membership(spec: MembershipSpec) -> Membership:
    """Create a membership with the protocol of ``spec.settings``; see :data:`MembershipFactory`."""
    match spec.settings.group_protocol:
        case GroupProtocolName.CLASSIC:
            assert spec.place is None or isinstance(spec.place, PlaceHandover), "a membership of a classic group"
            return GroupMembership(classic_step, ClassicMember(spec.member, spec.place), kafka_coordinator(spec))
        case GroupProtocolName.CONNECT:
            assert spec.place is None or isinstance(spec.place, ConnectPlaceHandover), "a membership of a connect group"
            member = ConnectMember(connect_member_settings(spec), spec.place)
            return GroupMembership(connect_step, member, kafka_connect_coordinator(spec))


def kafka_coordinator(spec: MembershipSpec) -> KafkaCoordinator:
    """Create the client with which a worker sends requests to the coordinator of its classic group."""
    return KafkaCoordinator(
        spec.settings.bootstrap_servers,
        client_id=spec.client_id,
        request_timeout_ms=spec.member.lease.request_timeout_ms,
        parked_timeout_ms=spec.member.response_timeout_ms,
        security=spec.settings.security,
    )


def kafka_connect_coordinator(spec: MembershipSpec) -> KafkaConnectCoordinator:
    """Create the client with which a worker sends requests to the coordinator of its connect group."""
    return KafkaConnectCoordinator(
        spec.settings.bootstrap_servers,
        client_id=spec.client_id,
        request_timeout_ms=CONNECT_OPEN_TIMEOUT_MS,
        security=spec.settings.security,
    )


def connect_member_settings(spec: MembershipSpec) -> ConnectMemberSettings:
    """The settings of a member of a connect group. Its member id is that of ``spec.place``, or new."""
    place = spec.place
    return ConnectMemberSettings(
        group_id=spec.member.group_id,
        member_id=MemberId(str(uuid.uuid4())) if place is None else place.member_id,
        instance_id=spec.member.instance_id,
        url=spec.member.url,
        name=spec.member.name,
        claims=spec.member.claims,
        assignors=tuple(spec.assignors),
        server_assignor=spec.settings.group_remote_assignor,
        rebalance_timeout_ms=spec.member.rebalance_timeout_ms,
        config_topic_id=spec.config_topic_id,
        connection_grace_ms=spec.settings.connection_grace_ms,
    )
