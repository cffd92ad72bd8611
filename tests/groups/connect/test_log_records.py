"""The bytes of connect groups' records: as docs/protocol/records defines them, and back again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.groups.connect.log_records import decode_record, encode_record
from coterie.groups.connect.messages import (
    ConfigsRemoved,
    ConfigsWritten,
    ConfiguredJobsRemoved,
    ConfiguredJobsWritten,
    CurrentAssignment,
    CurrentAssignmentRemoved,
    DepartedMemberRemoved,
    GroupRecord,
    GroupRemoved,
    MemberDeparted,
    MemberRecord,
    MemberRemoved,
    Record,
    TargetRemoved,
    TargetWritten,
)
from coterie.nouns.connect_groups import ConfiguredJobs, SupportedAssignor
from coterie.nouns.errors import WireError
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
from coterie.nouns.target_assignments import TargetOfMember, UnplaceableJobs
from tests.groups.connect.faulty_play import played_log
from tests.groups.connect.world import jobs_of
from tests.wire.connect_group_definitions import Encoder

RECORDS = Path(__file__).parents[3] / "docs" / "protocol" / "records"
GROUP = GroupId("workers")
W1 = MemberId("w1")
A = ConnectorName("a")
SOME = Jobs.of([A, ConnectorTaskId(A, 0), ConnectorTaskId(A, 12)])
SOME_JSON = {"Connectors": ["a"], "Tasks": [{"ConnectorId": "a", "TaskIds": [0, 12]}]}
OTHER = Jobs.of([ConnectorTaskId(A, 3)])
OTHER_JSON = {"Connectors": [], "Tasks": [{"ConnectorId": "a", "TaskIds": [3]}]}

CASES: Mapping[str, tuple[int, Record, Mapping[str, Any]]] = {
    "ConnectWorkerGroupMetadata": (
        3,
        GroupRecord(
            group_epoch=GroupEpoch(9), assignment_epoch=GroupEpoch(8), leader=W1, leader_epoch=LeaderEpoch(2),
            unplaceable=(UnplaceableJobs(jobs=SOME, reason="no worker"),), assignment_error="late",
            next_at_ms=77,
        ),
        {
            "Epoch": 9, "AssignmentEpoch": 8, "LeaderId": "w1", "LeaderEpoch": 2,
            "Unplaceable": [{"Reason": "no worker", **SOME_JSON}], "AssignmentError": "late", "NextAtMs": 77,
        },
    ),
    "ConnectWorkerGroupConnectorsTasksMetadata": (
        4,
        ConfiguredJobsWritten(
            group_epoch=GroupEpoch(4), config_topic_id=bytes(range(16)), leader_epoch=LeaderEpoch(3),
            configured=ConfiguredJobs(config_offset=ConfigOffset(99), jobs=SOME),
        ),
        {
            "Epoch": 4, "ConnectorsTasks": SOME_JSON, "ConfigTopicId": "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "ConfigOffset": 99, "LeaderEpoch": 3,
        },
    ),
    "ConnectWorkerGroupMemberMetadata": (
        5,
        MemberRecord(
            member_id=W1, group_epoch=GroupEpoch(7), joined_epoch=GroupEpoch(2), instance_id=InstanceId("one"),
            client_id="client", client_host="/10.0.0.1", url=WorkerUrl("http://w1"), name="worker-1",
            rebalance_timeout_ms=60_000, session_timeout_ms=10_000, connection_grace_ms=2_000,
            server_assignor="eager",
            client_assignors=(
                SupportedAssignor(
                    name="cooperative", minimum_version=0, maximum_version=3, version=2, metadata=b"\x01\x02",
                ),
            ),
            claims=SOME, draining=True, former=OTHER,
        ),
        {
            "GroupEpoch": 7, "InstanceId": "one", "ClientId": "client", "ClientHost": "/10.0.0.1",
            "Assignors": [
                {"Name": "cooperative", "MinimumVersion": 0, "MaximumVersion": 3, "Reason": 0, "Version": 2,
                 "Metadata": "0102"}
            ],
            "JoinedEpoch": 2, "Url": "http://w1", "Name": "worker-1", "RebalanceTimeoutMs": 60_000,
            "SessionTimeoutMs": 10_000, "ConnectionGraceMs": 2_000, "ServerAssignor": "eager", "Claims": SOME_JSON,
            "Draining": True, "Former": OTHER_JSON,
        },
    ),
    "ConnectWorkerGroupTargetAssignment": (
        6,
        TargetWritten(
            member_id=W1, assignment_epoch=GroupEpoch(5), target=TargetOfMember(jobs=SOME, version=3, metadata=b"m")
        ),
        {"AssignmentEpoch": 5, "Error": 0, "ConnectorsTasks": SOME_JSON, "Version": 3, "Metadata": "6d"},
    ),
    "ConnectWorkerGroupCurrentMemberAssignment": (
        7,
        CurrentAssignment(
            member_id=W1, member_epoch=MemberEpoch(6), previous_epoch=MemberEpoch(5), assigned=SOME, pending=OTHER,
            job_epochs={GroupEpoch(2): SOME, GroupEpoch(5): OTHER}, request_number=1 << 40,
        ),
        {
            "MemberEpoch": 6, "Error": 0, "ConnectorsTasks": SOME_JSON, "Version": 0, "Metadata": "",
            "PreviousEpoch": 5, "Pending": OTHER_JSON,
            "JobEpochs": [{"Epoch": 2, **SOME_JSON}, {"Epoch": 5, **OTHER_JSON}], "RequestNumber": 1 << 40,
        },
    ),
    "ConnectWorkerGroupConfiguration": (
        8,
        ConfigsWritten(configs={"connect.session.timeout.ms": "6000", "a": "b"}),
        {
            "Configurations": [
                {"Name": "a", "Value": "b"}, {"Name": "connect.session.timeout.ms", "Value": "6000"},
            ]
        },
    ),
    "ConnectWorkerGroupDepartedMember": (
        9,
        MemberDeparted(
            member_id=W1, instance_id=None, url=WorkerUrl("http://w1"), jobs=SOME, held=OTHER, held_until_ms=1_000,
            left_at_ms=900, deadline_ms=None, request_number=5, reason="an operator",
        ),
        {
            "InstanceId": None, "Url": "http://w1", "ConnectorsTasks": SOME_JSON, "Held": OTHER_JSON,
            "HeldUntilMs": 1_000, "LeftAtMs": 900, "DeadlineMs": -1, "RequestNumber": 5, "Reason": "an operator",
        },
    ),
}  # fmt: skip
ALL = pytest.mark.parametrize("name", CASES)


@ALL
def test_a_record_has_the_bytes_of_its_definition(name: str) -> None:
    """The definitions are read by an encoder that shares no code with Coterie's."""
    number, record, values = CASES[name]
    key, value = encode_record(GROUP, record)
    definition = json.loads((RECORDS / f"{name}Value.json").read_text())
    assert set(values) == {field["name"] for field in definition["fields"]}, "every field has a value"
    assert value == (0).to_bytes(2) + Encoder(definition).message(values)
    key_definition = json.loads((RECORDS / f"{name}Key.json").read_text())
    assert key_definition["validVersions"] == str(number)
    ids = [GROUP, *([W1] if len(key_definition["fields"]) == 2 else [])]
    assert key == number.to_bytes(2) + b"".join(len(each).to_bytes(2) + each.encode() for each in ids)
    assert decode_record(key, value) == (GROUP, record)


@ALL
def test_a_truncated_record_is_refused(name: str) -> None:
    key, value = encode_record(GROUP, CASES[name][1])
    assert value is not None
    for length in range(len(value)):
        with pytest.raises(WireError):
            decode_record(key, value[:length])
    for length in range(2, len(key)):
        with pytest.raises(WireError):
            decode_record(key[:length], value)


@ALL
def test_another_version_of_a_value_is_refused(name: str) -> None:
    key, value = encode_record(GROUP, CASES[name][1])
    assert value is not None
    with pytest.raises(WireError, match="version 1"):
        decode_record(key, b"\x00\x01" + value[2:])


@pytest.mark.parametrize(
    "record",
    [
        GroupRemoved(), ConfiguredJobsRemoved(), ConfigsRemoved(), MemberRemoved(member_id=W1),
        TargetRemoved(member_id=W1), CurrentAssignmentRemoved(member_id=W1), DepartedMemberRemoved(member_id=W1),
    ],
    ids=lambda record: type(record).__name__,
)  # fmt: skip
def test_a_tombstone_has_the_key_of_its_record(record: Record) -> None:
    key, value = encode_record(GROUP, record)
    assert value is None
    assert decode_record(key, None) == (GROUP, record)


def test_a_record_of_another_kind_is_ignored() -> None:
    assert decode_record(b"\x00\x02\x00\x01g", b"") is None


def test_all_records_of_a_group_are_read_back_as_they_were_written() -> None:
    log = [record for seed in range(8) for record in played_log(seed)]
    assert len({type(record) for record in log}) >= 10
    for record in log:
        assert decode_record(*encode_record(GROUP, record)) == (GROUP, record)


def test_the_target_of_100000_tasks_stays_below_the_size_of_a_batch() -> None:
    jobs = jobs_of(1, 100_000)
    _, value = encode_record(
        GROUP, TargetWritten(member_id=W1, assignment_epoch=GroupEpoch(1), target=TargetOfMember(jobs=jobs))
    )
    assert value is not None
    assert len(value) < 500_000
