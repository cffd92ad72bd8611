"""Makes a worker's membership of its group: the member machine of the group's protocol, and the client of its
coordinator."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.config.worker import WorkerSettings
from coterie.herder.seams import Membership
from coterie.kafka.connect_coordinator import KafkaConnectCoordinatorClient
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.member.classic.machine import step as classic_step
from coterie.member.classic.state import Member as ClassicMember
from coterie.member.classic.state import MemberSettings
from coterie.member.connect.machine import step as connect_step
from coterie.member.connect.state import Member as ConnectMember
from coterie.member.connect.state import MemberSettings as ConnectMemberSettings
from coterie.member.connect.state import OfferedAssignor
from coterie.nouns.ids import MemberId
from coterie.nouns.membership import ClassicMembershipHandover, ConnectMembershipHandover, GroupProtocolName, Handover
from coterie.worker.membership import GroupMembership

CONNECT_OPEN_TIMEOUT_MS = 3_000
"""The time limit for finding the coordinator of a connect group, and for opening a connection to it. A constant,
because the coordinator decides the session timeout: by default 10 s, and at least 6 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSpec:
    """The input from which a worker's membership of its group is created (:func:`make_group_membership`)."""

    worker_settings: WorkerSettings
    member_settings: MemberSettings
    """The settings of a member of a classic group; a member of a connect group uses a part of them."""
    client_id: str
    inherited_handover: Handover | None = None
    """The membership of the worker's previous process, which the new one continues; None: the worker joins as a new
    member. Of the same protocol as in ``worker_settings``."""
    offered_assignors: Sequence[OfferedAssignor] = ()
    """The assignors that the worker offers to a connect group, the preferred one first."""
    config_topic_id: bytes | None = None
    """The topic id of the worker's config topic, 16 bytes; None in a classic group, or if it is not known."""


MembershipFactory: TypeAlias = Callable[[MembershipSpec], Membership]
"""Creates the membership of a worker."""


def make_group_membership(spec: MembershipSpec) -> Membership:
    """Create the membership of a worker in its classic or connect group, with its own client of the coordinator. The
    membership joins the group only when it runs."""
    match spec.worker_settings.group_protocol:
        case GroupProtocolName.CLASSIC:
            assert spec.inherited_handover is None or isinstance(spec.inherited_handover, ClassicMembershipHandover), (
                "a membership of a classic group"
            )
            return GroupMembership(
                classic_step,
                ClassicMember(spec.member_settings, spec.inherited_handover),
                make_classic_coordinator_client(spec),
            )
        case GroupProtocolName.CONNECT:
            assert spec.inherited_handover is None or isinstance(spec.inherited_handover, ConnectMembershipHandover), (
                "a membership of a connect group"
            )
            member = ConnectMember(make_connect_member_settings(spec), spec.inherited_handover)
            return GroupMembership(connect_step, member, make_connect_coordinator_client(spec))


def make_classic_coordinator_client(spec: MembershipSpec) -> KafkaClassicCoordinatorClient:
    """Create the client with which a worker sends requests to the coordinator of its classic group."""
    return KafkaClassicCoordinatorClient(
        spec.worker_settings.bootstrap_servers,
        client_id=spec.client_id,
        request_timeout_ms=spec.member_settings.lease_durations.request_timeout_ms,
        parked_timeout_ms=spec.member_settings.round_response_timeout_ms,
        security=spec.worker_settings.security,
    )


def make_connect_coordinator_client(spec: MembershipSpec) -> KafkaConnectCoordinatorClient:
    """Create the client with which a worker sends requests to the coordinator of its connect group."""
    return KafkaConnectCoordinatorClient(
        spec.worker_settings.bootstrap_servers,
        client_id=spec.client_id,
        request_timeout_ms=CONNECT_OPEN_TIMEOUT_MS,
        security=spec.worker_settings.security,
    )


def make_connect_member_settings(spec: MembershipSpec) -> ConnectMemberSettings:
    """The settings of a member of a connect group. Its member id is that of ``spec.inherited_handover``, or new."""
    membership_handover = spec.inherited_handover
    return ConnectMemberSettings(
        group_id=spec.member_settings.group_id,
        member_id=MemberId(str(uuid.uuid4())) if membership_handover is None else membership_handover.member_id,
        instance_id=spec.member_settings.instance_id,
        url=spec.member_settings.url,
        worker_name=spec.member_settings.worker_name,
        claims=spec.member_settings.claims,
        assignors=tuple(spec.offered_assignors),
        server_assignor=spec.worker_settings.group_remote_assignor,
        rebalance_timeout_ms=spec.member_settings.rebalance_timeout_ms,
        config_topic_id=spec.config_topic_id,
        connection_grace_ms=spec.worker_settings.connection_grace_ms,
    )
