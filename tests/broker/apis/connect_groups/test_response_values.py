"""Responses of connect groups' coordinators reach their clients with all their fields."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest

from coterie.broker.apis.connect_groups.response_values import (
    describe_values,
    described_group_values,
    heartbeat_values,
    install_assignment_values,
    prepare_assignment_values,
)
from coterie.groups.connect.messages import (
    DescribedDepartedMember,
    DescribedMember,
    DescribeGroupResponse,
    GroupState,
    MemberDeparted,
    MemberRecord,
)
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    AssignmentToMember,
    HeartbeatResponse,
    InstallAssignmentResponse,
    LeaderOfGroup,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import (
    ConfigOffset,
    GroupEpoch,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberEpoch,
    MemberId,
    WorkerUrl,
)
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import GroupSnapshot, SnapshotDeparted, SnapshotMember, UnplaceableJobs
from coterie.wire.connect_group_jobs import job_arrays
from coterie.wire.empty_values import response_with_empty_values
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import RequestHeader, decode_response, encode_response_frame
from coterie.wire.kio_entities import Values, build_response
from coterie.wire.schemas import CONNECT_GROUP_APIS, annotation_without_none, response_schema


def jobs(name: str) -> Jobs:
    return Jobs.of([ConnectorName(name), ConnectorTaskId(ConnectorName(name), 1)])


ERROR, MESSAGE = ConnectErrorCode.STALE_REQUEST, "message"
HEARTBEAT = HeartbeatResponse(
    error=ERROR,
    message=MESSAGE,
    member_epoch=MemberEpoch(1),
    heartbeat_interval_ms=2,
    assignment=AssignmentToMember(
        jobs=jobs("jobs"),
        jobs_by_assignment_epoch={GroupEpoch(4): jobs("later"), GroupEpoch(3): jobs("earlier")},
        assignment_epoch=GroupEpoch(5),
        config_offset=ConfigOffset(6),
        version=7,
        metadata=b"8",
    ),
    leader=LeaderOfGroup(member_id=MemberId("leader"), leader_epoch=LeaderEpoch(9), url=WorkerUrl("leader url")),
    session_timeout_ms=10,
)
PREPARE = PrepareAssignmentResponse(
    error=ERROR,
    message=MESSAGE,
    snapshot=GroupSnapshot(
        group_epoch=GroupEpoch(1),
        assignor="assignor",
        members=(
            SnapshotMember(
                member_id=MemberId("m"),
                member_epoch=MemberEpoch(2),
                instance_id=InstanceId("i"),
                url=WorkerUrl("url"),
                name="name",
                config_offset=ConfigOffset(3),
                version=4,
                reason=5,
                metadata=b"6",
                claims=jobs("claims"),
                draining=True,
                target=jobs("target"),
                current=jobs("current"),
                pending=jobs("pending"),
                former_jobs=jobs("former"),
            ),
        ),
        departed=(
            SnapshotDeparted(
                member_id=MemberId("d"),
                instance_id=InstanceId("di"),
                url=WorkerUrl("departed url"),
                jobs=jobs("departed"),
                delay_left_ms=7,
            ),
        ),
        config_offset=ConfigOffset(8),
        configured=jobs("configured"),
        max_delay_ms=9,
        time_limit_ms=10,
    ),
)
INSTALL = InstallAssignmentResponse(error=ERROR, message=MESSAGE)
DESCRIBE = DescribeGroupResponse(
    error=ERROR,
    message=MESSAGE,
    state=GroupState.STABLE,
    group_epoch=GroupEpoch(1),
    assignment_epoch=GroupEpoch(2),
    assignor="assignor",
    computing_member=MemberId("computing"),
    assignment_error="assignment error",
    leader=MemberId("leader"),
    leader_epoch=LeaderEpoch(3),
    config_offset=ConfigOffset(4),
    members=(
        DescribedMember(
            metadata=MemberRecord(
                member_id=MemberId("m"),
                group_epoch=GroupEpoch(101),
                joined_epoch=GroupEpoch(102),
                instance_id=InstanceId("i"),
                client_id="client",
                client_host="host",
                url=WorkerUrl("url"),
                name="name",
                rebalance_timeout_ms=103,
                session_timeout_ms=104,
                connection_grace_ms=105,
                server_assignor=None,
                client_assignors=(),
                claims=jobs("claims"),
                draining=True,
            ),
            member_epoch=MemberEpoch(5),
            state=MemberState.COMPLETING_REBALANCE,
            config_offset=ConfigOffset(6),
            assigned=jobs("assigned"),
            pending=jobs("pending"),
            target=jobs("target"),
            awaited_jobs_by_holder={MemberId("h2"): jobs("awaited2"), MemberId("h1"): jobs("awaited1")},
        ),
    ),
    departed_members=(
        DescribedDepartedMember(
            departed_member=MemberDeparted(
                member_id=MemberId("d"),
                instance_id=InstanceId("di"),
                url=WorkerUrl("departed url"),
                jobs=jobs("departed"),
                held=jobs("held"),
                left_at_ms=0,
                held_until_ms=106,
                deadline_ms=107,
                reason="departed reason",
            ),
            delay_left_ms=7,
            held_jobs_left_ms=8,
        ),
    ),
    unplaceable=(UnplaceableJobs(jobs=jobs("unplaceable"), reason="reason"),),
    configs={"key": "value"},
    effective_configs={"config": "of the group"},
)

TRANSLATIONS: list[tuple[int, Any, Callable[[Any], Values]]] = [
    (10000, HEARTBEAT, heartbeat_values),
    (10001, PREPARE, prepare_assignment_values),
    (10002, INSTALL, install_assignment_values),
    (
        10003,
        DESCRIBE,
        lambda response: describe_values([described_group_values(GroupId("g"), response, authorized_operations=5)]),
    ),
]
EACH_RESPONSE = pytest.mark.parametrize(
    ("api_key", "response", "translate"), TRANSLATIONS, ids=lambda one: str(one)[:5]
)


def received(api_key: int, values: Values) -> Any:
    """The entity that a client decodes."""
    header = RequestHeader(api_key=api_key, api_version=0, correlation_id=1)
    return decode_response(encode_response_frame(header, build_response(api_key, 0, values)), header)


def test_a_heartbeat_response_has_all_its_values() -> None:
    assert heartbeat_values(HEARTBEAT) == {
        "throttle_time_ms": 0, "error_code": 10002, "error_message": "message", "member_epoch": 1,
        "heartbeat_interval_ms": 2,
        "assignment": {
            "error": 0, "connectors_and_tasks": job_arrays(jobs("jobs")), "version": 7, "metadata": b"8",
            "job_epochs": [{"epoch": 3, **job_arrays(jobs("earlier"))}, {"epoch": 4, **job_arrays(jobs("later"))}],
        },
        "leader_id": "leader", "leader_epoch": 9, "leader_url": "leader url", "assignment_epoch": 5,
        "config_offset": 6, "session_timeout_ms": 10,
    }  # fmt: skip


def test_an_unchanged_field_of_a_heartbeat_response_has_its_default() -> None:
    got = received(10000, heartbeat_values(HeartbeatResponse(member_epoch=MemberEpoch(3), heartbeat_interval_ms=5)))
    assert (got.error_code, got.error_message, got.member_epoch, got.heartbeat_interval_ms) == (0, None, 3, 5)
    assert (got.assignment, got.assignment_epoch, got.config_offset) == (None, -1, -2)
    assert (got.leader_id, got.leader_epoch, got.leader_url, got.session_timeout_ms) == (None, -1, None, -1)


def test_a_prepare_response_has_all_its_values() -> None:
    assert prepare_assignment_values(PREPARE) == {
        "throttle_time_ms": 0, "error_code": 10002, "error_message": "message", "group_epoch": 1,
        "assignor_name": "assignor",
        "members": [
            {
                "member_id": "m", "member_epoch": 2, "instance_id": "i",
                "assignor": {"version": 4, "reason": 5, "metadata": b"6"},
                "connectors_and_tasks": job_arrays(jobs("target")), "url": "url", "name": "name", "config_offset": 3,
                "claims": {"value": job_arrays(jobs("claims"))}, "draining": True,
                "current": {"value": job_arrays(jobs("current"))}, "pending": {"value": job_arrays(jobs("pending"))},
                "former": {"value": job_arrays(jobs("former"))},
            }
        ],
        "configured": {"value": {"config_offset": 8, **job_arrays(jobs("configured"))}},
        "departed": [
            {"member_id": "d", "instance_id": "di", "url": "departed url", "delay_left_ms": 7,
             **job_arrays(jobs("departed"))}
        ],
        "max_delay_ms": 9, "time_limit_ms": 10,
    }  # fmt: skip


def test_a_prepare_response_leaves_out_what_is_empty_or_equal_to_the_target() -> None:
    assert PREPARE.snapshot is not None
    (member,), (departed,) = PREPARE.snapshot.members, PREPARE.snapshot.departed
    plain = replace(member, claims=None, current=member.target, pending=Jobs(), former_jobs=Jobs())
    snapshot = replace(
        PREPARE.snapshot, members=(plain,), departed=(replace(departed, delay_left_ms=None),), max_delay_ms=None
    )
    got = received(10001, prepare_assignment_values(PrepareAssignmentResponse(snapshot=snapshot)))
    (received_member,) = got.members
    assert [
        one.value
        for one in (received_member.claims, received_member.current, received_member.pending, received_member.former)
    ] == [None] * 4
    assert (got.departed[0].delay_left_ms, got.max_delay_ms) == (-1, -1)
    # Claims and current jobs may be empty sets, which is not the same as none.
    bare = replace(member, claims=Jobs(), current=Jobs())
    values = prepare_assignment_values(PrepareAssignmentResponse(snapshot=replace(snapshot, members=(bare,))))
    (received_member,) = received(10001, values).members
    assert (received_member.claims.value.connectors, received_member.current.value.tasks) == ((), ())


def test_a_prepare_response_with_an_error_has_no_members() -> None:
    got = received(
        10001, prepare_assignment_values(PrepareAssignmentResponse(error=ConnectErrorCode.UNKNOWN_MEMBER_ID))
    )
    assert (got.error_code, got.group_epoch, got.assignor_name, got.members) == (25, 0, "", ())
    assert got.configured.value is None


def test_a_describe_response_has_all_its_values() -> None:
    assert described_group_values(GroupId("g"), DESCRIBE, authorized_operations=9) == {
        "error_code": 10002, "error_message": "message", "group_id": "g", "group_state": "Stable", "group_epoch": 1,
        "assignment_epoch": 2, "assignor_name": "assignor", "computing_member": "computing",
        "assignment_error": "assignment error", "leader_id": "leader", "leader_epoch": 3, "config_offset": 4,
        "members": [
            {
                "member_id": "m", "instance_id": "i", "client_id": "client", "client_host": "host", "url": "url",
                "name": "name", "member_epoch": 5, "state": "COMPLETING_REBALANCE", "draining": True,
                "config_offset": 6, "claims": job_arrays(jobs("claims")), "assigned": job_arrays(jobs("assigned")),
                "pending": job_arrays(jobs("pending")), "target": job_arrays(jobs("target")),
                "awaited": [
                    {"holder_id": "h1", **job_arrays(jobs("awaited1"))},
                    {"holder_id": "h2", **job_arrays(jobs("awaited2"))},
                ],
            }
        ],
        "departed": [
            {"member_id": "d", "instance_id": "di", "url": "departed url", "delay_left_ms": 7, "held_left_ms": 8,
             **job_arrays(jobs("departed")), "reason": "departed reason"}
        ],
        "unplaceable": [{"reason": "reason", **job_arrays(jobs("unplaceable"))}],
        "authorized_operations": 9, "configs": [{"name": "config", "value": "of the group"}],
    }  # fmt: skip


def missing(schema: Any, values: Values) -> Iterator[str]:
    """The fields of ``schema`` that ``values`` does not give, and values that are no fields of it."""
    names = {field.name: field for field in fields(schema)}
    yield from (f"{schema.__name__}.{name}" for name in set(names) ^ set(values))
    for name in set(names) & set(values):
        element = annotation_without_none(names[name].type)
        element = getattr(element, "__args__", (element,))[0]
        inner = values[name] if isinstance(values[name], list | tuple) else [values[name]]
        for one in inner if is_dataclass(element) else ():
            yield from missing(element, one)


@EACH_RESPONSE
def test_each_field_of_a_response_on_the_wire_has_a_value(
    api_key: int, response: Any, translate: Callable[[Any], Values]
) -> None:
    assert list(missing(response_schema(api_key, 0), translate(response))) == []
    assert received(api_key, translate(response)) == build_response(api_key, 0, translate(response))


def variants(value: Any) -> Iterator[tuple[str, Any]]:
    """``value`` with one of the fields in it changed, and the field's name."""
    if isinstance(value, tuple):
        for name, changed in variants(value[0]) if value else ():
            yield name, (changed, *value[1:])
    elif is_dataclass(value) and not isinstance(value, type | Jobs):
        for field in fields(value):
            for name, changed in variants(getattr(value, field.name)):
                yield f"{field.name}.{name}".strip("."), replace(value, **{field.name: changed})
    elif value is not None:
        yield "", other_value(value)


def other_value(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case Jobs():
            return value | jobs("one more")
        case Mapping():
            return {}
        case Enum():
            return next(one for one in type(value) if one is not value)
        case bool():
            return not value
        case int():
            return value + 1
        case _:
            return value * 2


NOT_ON_THE_WIRE = {
    "configs", "members.metadata.group_epoch", "members.metadata.joined_epoch",
    "members.metadata.rebalance_timeout_ms", "members.metadata.session_timeout_ms",
    "members.metadata.connection_grace_ms", "members.metadata.former", "departed_members.departed_member.held",
    "departed_members.departed_member.held_until_ms", "departed_members.departed_member.left_at_ms",
    "departed_members.departed_member.deadline_ms",
    "departed_members.departed_member.request_number",
}  # fmt: skip
"""Fields of a described group that only its coordinator uses, and its configs, which DescribeConfigs returns."""


@EACH_RESPONSE
def test_a_change_of_any_field_of_a_response_is_received(
    api_key: int, response: Any, translate: Callable[[Any], Values]
) -> None:
    plain = received(api_key, translate(response))
    changed_responses = list(variants(response))
    assert len(changed_responses) > 1
    without_effect = {name for name, changed in changed_responses if received(api_key, translate(changed)) == plain}
    assert without_effect == (NOT_ON_THE_WIRE if api_key == 10003 else set())


@pytest.mark.parametrize("api_key", sorted(CONNECT_GROUP_APIS))
def test_the_response_to_a_request_without_authorization_has_the_duration_0(api_key: int) -> None:
    """The access rules answer with empty values, without a handler."""
    got = received(
        api_key, response_with_empty_values(api_key, 0, {"error_code": ErrorCode.group_authorization_failed})
    )
    assert got.throttle_time_ms == 0
    assert getattr(got, "error_code", 30) == 30
    assert getattr(got, "heartbeat_interval_ms", 0) == 0


def test_the_state_of_a_group_of_a_hundred_thousand_connectors_whose_jobs_move_can_be_read() -> None:
    """Each job is listed three times: as configured, in the target of one member, and among the jobs of another."""
    names = [ConnectorName(f"c{number}") for number in range(100_000)]
    configured, first_half = (
        Jobs.of(job for name in part for job in (name, ConnectorTaskId(name, 0))) for part in (names, names[:50_000])
    )
    present, target = (first_half, configured - first_half), (configured - first_half, first_half)
    assert PREPARE.snapshot is not None
    (member,) = PREPARE.snapshot.members
    members = tuple(
        replace(member, current=current, target=target) for current, target in zip(present, target, strict=True)
    )
    snapshot = replace(PREPARE.snapshot, members=members, configured=configured)
    response = build_response(10001, 0, prepare_assignment_values(PrepareAssignmentResponse(snapshot=snapshot)))
    header = RequestHeader(api_key=10001, api_version=0, correlation_id=1)
    decoded = decode_response(encode_response_frame(header, response), header)
    assert decoded == response
