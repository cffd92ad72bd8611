"""The bytes of connect groups' records: literal ones, those of any record, and hostile ones.

`test_log_records` has the records of one group. Here a second encoder, which interprets docs/protocol/records, must
agree with Coterie's on the bytes of any record.
"""

import contextlib
import dataclasses
import json
import tracemalloc
import uuid
from collections.abc import Iterator, Mapping
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.connect.log_records import decode_record, encode_record
from coterie.groups.connect.messages import (
    ConfigsWritten,
    ConfiguredJobsWritten,
    CurrentAssignment,
    GroupRecord,
    MemberDeparted,
    MemberRecord,
    Record,
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
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import TargetOfMember, UnplaceableJobs
from tests.groups.connect.world import jobs_of
from tests.wire.connect_group_definitions import Encoder, snake_case, type_of

RECORDS = Path(__file__).parents[3] / "docs" / "protocol" / "records"
DEFINITIONS = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}
G, W1, A = GroupId("g"), MemberId("w1"), ConnectorName("a")
JOB = Jobs.of([A])
TASK = Jobs.of([ConnectorTaskId(A, 3)])
BATCH_SIZE_MAX = 1_048_588
"""Kafka's default of ``max.message.bytes``."""

# -- literal bytes -----------------------------------------------------------------------------------------------------

LITERAL: Mapping[str, tuple[Record, str, str]] = {
    "ConnectWorkerGroupMetadata": (
        GroupRecord(
            group_epoch=GroupEpoch(9), assignment_epoch=GroupEpoch(8), leader=W1, leader_epoch=LeaderEpoch(2),
            unplaceable=(UnplaceableJobs(jobs=JOB | TASK, reason="no"),), assignment_error="e", next_at_ms=77,
        ),
        "0003 0001 67"                   # key version 3, group id "g"
        ,
        "0000"                           # value version 0
        "00000009"                       # Epoch 9
        "06"                             # 6 tagged fields
        "00 04 00000008"                 # tag 0, 4 bytes: AssignmentEpoch 8
        "01 03 03 7731"                  # tag 1, 3 bytes: LeaderId "w1"
        "02 04 00000002"                 # tag 2, 4 bytes: LeaderEpoch 2
        "03 11 02"                       # tag 3, 17 bytes: Unplaceable, 1 element
        "   03 6e6f"                     #     Reason "no"
        "   02 02 61"                    #     Connectors: 1 name, "a"
        "   02 02 61 02 00000003 00 00"  #     Tasks: 1 element, "a", 1 number, 3, no tagged fields; no tagged fields
        "04 02 02 65"                    # tag 4, 2 bytes: AssignmentError "e"
        "05 08 000000000000004d",        # tag 5, 8 bytes: NextAtMs 77
    ),
    "ConnectWorkerGroupConnectorsTasksMetadata": (
        ConfiguredJobsWritten(
            group_epoch=GroupEpoch(4), config_topic_id=bytes(range(16)), leader_epoch=LeaderEpoch(3),
            configured=ConfiguredJobs(config_offset=ConfigOffset(99), jobs=JOB),
        ),
        "0004 0001 67"                   # key version 4, group id "g"
        ,
        "0000"                           # value version 0
        "00000004"                       # Epoch 4
        "02 02 61 01 00"                 # Connectors "a", no Tasks, no tagged fields
        "03"                             # 3 tagged fields
        "00 10 000102030405060708090a0b0c0d0e0f"  # tag 0, 16 bytes: ConfigTopicId
        "01 08 0000000000000063"         # tag 1, 8 bytes: ConfigOffset 99
        "02 04 00000003",                # tag 2, 4 bytes: LeaderEpoch 3
    ),
    "ConnectWorkerGroupMemberMetadata": (
        MemberRecord(
            member_id=W1, group_epoch=GroupEpoch(7), joined_epoch=GroupEpoch(2), instance_id=None, client_id="c",
            client_host="/h", url=WorkerUrl("u"), name="n", rebalance_timeout_ms=60_000, session_timeout_ms=10_000,
            connection_grace_ms=2_000, server_assignor="s",
            client_assignors=(
                SupportedAssignor(
                    name="v", minimum_version=0, maximum_version=3, reason=1, version=2, metadata=b"\x09",
                ),
            ),
            claims=NO_JOBS, draining=True, former=JOB,
        ),
        "0005 0001 67 0002 7731"         # key version 5, group id "g", member id "w1"
        ,
        "0000"                           # value version 0
        "00000007"                       # GroupEpoch 7
        "00"                             # InstanceId null
        "02 63"                          # ClientId "c"
        "03 2f68"                        # ClientHost "/h"
        "02"                             # Assignors: 1 element
        "   02 76 0000 0003 01 0002"     #     Name "v", versions 0 to 3, Reason 1, Version 2
        "   02 09 00"                    #     Metadata, 1 byte; no tagged fields
        "0a"                             # 10 tagged fields
        "00 04 00000002"                 # tag 0: JoinedEpoch 2
        "01 02 02 75"                    # tag 1: Url "u"
        "02 02 02 6e"                    # tag 2: Name "n"
        "03 04 0000ea60"                 # tag 3: RebalanceTimeoutMs 60000
        "04 04 00002710"                 # tag 4: SessionTimeoutMs 10000
        "05 04 000007d0"                 # tag 5: ConnectionGraceMs 2000
        "06 02 02 73"                    # tag 6: ServerAssignor "s"
        "07 04 01 01 01 00"              # tag 7: Claims, not null, empty
        "08 01 01"                       # tag 8: Draining
        "09 05 02 02 61 01 00",          # tag 9: Former, the connector "a"
    ),
    "ConnectWorkerGroupTargetAssignment": (
        TargetWritten(
            member_id=W1, assignment_epoch=GroupEpoch(5),
            target=TargetOfMember(
                jobs=Jobs.of([ConnectorTaskId(A, 12), ConnectorTaskId(A, 0)]), version=3, metadata=b"m"
            ),
        ),
        "0006 0001 67 0002 7731"         # key version 6, group id "g", member id "w1"
        ,
        "0000"                           # value version 0
        "00000005"                       # AssignmentEpoch 5
        "00"                             # Error 0
        "01"                             # Connectors: none
        "02 02 61 03 00000000 0000000c 00 00"  # Tasks: "a", the numbers 0 and 12
        "0003"                           # Version 3
        "02 6d"                          # Metadata, 1 byte
        "00",                            # no tagged fields
    ),
    "ConnectWorkerGroupCurrentMemberAssignment": (
        CurrentAssignment(
            member_id=W1, member_epoch=MemberEpoch(-2), previous_epoch=MemberEpoch(5), assigned=JOB, pending=TASK,
            job_epochs={GroupEpoch(5): TASK, GroupEpoch(2): JOB}, request_number=300,
        ),
        "0007 0001 67 0002 7731"         # key version 7, group id "g", member id "w1"
        ,
        "0000"                           # value version 0
        "fffffffe"                       # MemberEpoch -2
        "00"                             # Error 0
        "02 02 61 01 00"                 # the connector "a"
        "0000 01"                        # Version 0, Metadata empty
        "04"                             # 4 tagged fields
        "00 04 00000005"                 # tag 0: PreviousEpoch 5
        "01 0b 01 02 02 61 02 00000003 00 00"  # tag 1, 11 bytes: Pending, the task a-3
        "02 19 03"                       # tag 2, 25 bytes: JobEpochs, 2 elements
        "   00000002 02 02 61 01 00"     #     Epoch 2, the connector "a"
        "   00000005 01 02 02 61 02 00000003 00 00"  #     Epoch 5, the task a-3
        "03 08 000000000000012c",        # tag 3: RequestNumber 300
    ),
    "ConnectWorkerGroupConfiguration": (
        ConfigsWritten(configs={"b": "2", "a": "1"}),
        "0008 0001 67"                   # key version 8, group id "g"
        ,
        "0000"                           # value version 0
        "03"                             # 2 Configurations, in the order of the names
        "   02 61 02 31 00"              #     Name "a", Value "1"
        "   02 62 02 32 00"              #     Name "b", Value "2"
        "00",                            # no tagged fields
    ),
    "ConnectWorkerGroupDepartedMember": (
        MemberDeparted(
            member_id=W1, instance_id=InstanceId("i"), url=WorkerUrl("u"), jobs=JOB, held=NO_JOBS,
            held_until_ms=1_000, left_at_ms=900, deadline_ms=None, request_number=5, reason="gone",
        ),
        "0009 0001 67 0002 7731"         # key version 9, group id "g", member id "w1"
        ,
        "0000"                           # value version 0
        "02 69"                          # InstanceId "i"
        "02 75"                          # Url "u"
        "02 02 61 01 00"                 # the connector "a"
        "01 01 00"                       # Held: empty
        "00000000000003e8"               # HeldUntilMs 1000
        "0000000000000384"               # LeftAtMs 900
        "ffffffffffffffff"               # DeadlineMs: none
        "0000000000000005"               # RequestNumber 5
        "01"                             # one tagged field
        "00 05 05 676f6e65",             # tag 0, 5 bytes: Reason "gone"
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", LITERAL)


@EACH
def test_a_record_has_these_bytes(name: str) -> None:
    record, key, value = LITERAL[name]
    assert encode_record(G, record) == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode_record(bytes.fromhex(key), bytes.fromhex(value)) == (G, record)


# -- the definitions and the dataclasses -------------------------------------------------------------------------------

PATHS: Mapping[str, Mapping[str, str | None]] = {
    "ConnectWorkerGroupMetadata": {"Epoch": "group_epoch", "LeaderId": "leader"},
    "ConnectWorkerGroupConnectorsTasksMetadata": {
        "Epoch": "group_epoch", "ConnectorsTasks": "configured.jobs", "ConfigOffset": "configured.config_offset",
    },
    "ConnectWorkerGroupMemberMetadata": {"Assignors": "client_assignors"},
    "ConnectWorkerGroupTargetAssignment": {
        "Error": None, "ConnectorsTasks": "target.jobs", "Version": "target.version", "Metadata": "target.metadata",
    },
    "ConnectWorkerGroupCurrentMemberAssignment": {
        "Error": None, "ConnectorsTasks": "assigned", "Version": None, "Metadata": None,
    },
    "ConnectWorkerGroupConfiguration": {"Configurations": "configs"},
    "ConnectWorkerGroupDepartedMember": {"ConnectorsTasks": "jobs"},
}  # fmt: skip
"""Where the value of a field is in the record, if its path is not the field's name in snake case; None for a field that
only the draft has, and that always has its default."""
NESTED = {"configured": ConfiguredJobs, "target": TargetOfMember}
"""The fields of records whose own fields are fields of the value."""


def paths_in(definition: Mapping[str, Any], renamed: Mapping[str, str | None]) -> list[str]:
    """The paths of all fields of a value, sorted; twice if two fields have the same path."""
    names = [field["name"] for field in definition["fields"]]
    assert set(renamed) <= set(names)
    return sorted(path for name in names if (path := renamed.get(name, snake_case(name))) is not None)


def paths_of(type_: Any) -> list[str]:
    """The paths of all fields of a dataclass, except the member id, which is in the key; sorted."""
    names = [field.name for field in dataclasses.fields(type_)]
    return sorted(
        path
        for name in names
        if name != "member_id"
        for path in ([f"{name}.{inner}" for inner in paths_of(NESTED[name])] if name in NESTED else [name])
    )


def values_of(name: str, record: Record) -> dict[str, Any]:
    """The values of a record for the encoder that interprets the definitions."""
    definition = DEFINITIONS[f"{name}Value"]
    found = {}
    for field in definition["fields"]:
        path = PATHS[name].get(field["name"], snake_case(field["name"]))
        if path is not None:
            found[field["name"]] = value_of(field, attrgetter(path)(record))
    return found


def value_of(field: Mapping[str, Any], value: Any) -> Any:
    match value:
        case None:
            return -1 if field["type"] == "int64" else None
        case Jobs():
            return jobs_value(value)
        case bytes():
            return str(uuid.UUID(bytes=value)) if field["type"] == "uuid" else value.hex()
        case tuple():
            return [struct_value(each) for each in value]
        case Mapping() if field["name"] == "JobEpochs":
            return [{"Epoch": epoch, **jobs_value(jobs)} for epoch, jobs in sorted(value.items())]
        case Mapping():
            return [{"Name": key, "Value": config} for key, config in sorted(value.items())]
        case _:
            return value


def struct_value(struct: SupportedAssignor | UnplaceableJobs) -> dict[str, Any]:
    match struct:
        case UnplaceableJobs(reason=reason, jobs=jobs):
            return {"Reason": reason, **jobs_value(jobs)}
        case SupportedAssignor():
            values = dataclasses.asdict(struct) | {"metadata": struct.metadata.hex()}
            return {"".join(part.capitalize() for part in key.split("_")): value for key, value in values.items()}


def jobs_value(jobs: Jobs) -> dict[str, Any]:
    numbers: dict[str, list[int]] = {}
    for connector, number in sorted(jobs.tasks):
        numbers.setdefault(connector, []).append(number)
    tasks = [{"ConnectorId": connector, "TaskIds": of_connector} for connector, of_connector in numbers.items()]
    return {"Connectors": sorted(jobs.connectors), "Tasks": tasks}


@EACH
def test_a_definition_and_its_dataclass_have_the_same_fields(name: str) -> None:
    assert paths_in(DEFINITIONS[f"{name}Value"], PATHS[name]) == paths_of(type(LITERAL[name][0]))


@EACH
def test_a_field_more_in_one_of_them_is_noticed(name: str) -> None:
    type_, definition = type(LITERAL[name][0]), DEFINITIONS[f"{name}Value"]
    more = definition | {"fields": [*definition["fields"], {"name": "Later", "type": "int8", "versions": "0+"}]}
    assert paths_in(more, PATHS[name]) != paths_of(type_)
    larger = dataclasses.make_dataclass("Larger", ["later"], bases=(type_,), frozen=True, kw_only=True)
    assert paths_in(definition, PATHS[name]) != paths_of(larger)


def test_the_structs_of_assignors_and_unplaceable_jobs_have_the_fields_of_their_dataclasses() -> None:
    (assignors,) = (
        field
        for field in DEFINITIONS["ConnectWorkerGroupMemberMetadataValue"]["fields"]
        if field["name"] == "Assignors"
    )
    assert [snake_case(field["name"]) for field in assignors["fields"]] == paths_in_order(SupportedAssignor)
    (unplaceable,) = (
        field for field in DEFINITIONS["ConnectWorkerGroupMetadataValue"]["fields"] if field["name"] == "Unplaceable"
    )
    assert [field["name"] for field in unplaceable["fields"]] == ["Reason", "Connectors", "Tasks"]
    assert sorted(paths_in_order(UnplaceableJobs)) == ["jobs", "reason"]


def paths_in_order(type_: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(type_)]


def test_only_a_field_that_the_draft_lacks_is_tagged() -> None:
    """The last record is not in the draft: only the field that older records lack is tagged."""
    tagged = {
        name: [field["name"] for field in definition["fields"] if "tag" in field]
        for name, definition in DEFINITIONS.items()
    }
    for name, definition in DEFINITIONS.items():
        tags = [field["tag"] for field in definition["fields"] if "tag" in field]
        assert tags == list(range(len(tags))), name
        names = [field["name"] for field in definition["fields"]]
        assert names[len(names) - len(tags) :] == tagged[name], "the draft's fields come first"
    assert tagged["ConnectWorkerGroupDepartedMemberValue"] == ["Reason"]


# -- any record --------------------------------------------------------------------------------------------------------

INT8, INT16 = st.integers(-(2**7), 2**7 - 1), st.integers(-(2**15), 2**15 - 1)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(0, 2**63 - 1)
TEXT, BYTES = st.text(max_size=9), st.binary(max_size=9)
NAMES = TEXT.map(ConnectorName)
JOBS = st.lists(NAMES | st.builds(ConnectorTaskId, NAMES, st.integers(0, 2**31 - 1)), max_size=6).map(Jobs.of)
EPOCHS, LEADER_EPOCHS, MEMBER_EPOCHS = INT32.map(GroupEpoch), INT32.map(LeaderEpoch), INT32.map(MemberEpoch)
MEMBER_IDS, URLS, INSTANCE_IDS = TEXT.map(MemberId), TEXT.map(WorkerUrl), st.none() | TEXT.map(InstanceId)
ASSIGNORS = st.builds(
    SupportedAssignor,
    name=TEXT,
    minimum_version=INT16,
    maximum_version=INT16,
    reason=INT8,
    version=INT16,
    metadata=BYTES,
)
ANY: Mapping[str, st.SearchStrategy[Record]] = {
    "ConnectWorkerGroupMetadata": st.builds(
        GroupRecord, group_epoch=EPOCHS, assignment_epoch=EPOCHS, leader=st.none() | MEMBER_IDS,
        leader_epoch=LEADER_EPOCHS, assignment_error=TEXT, next_at_ms=st.none() | TIMES,
        unplaceable=st.lists(st.builds(UnplaceableJobs, jobs=JOBS, reason=TEXT), max_size=3).map(tuple),
    ),
    "ConnectWorkerGroupConnectorsTasksMetadata": st.builds(
        ConfiguredJobsWritten, group_epoch=EPOCHS, config_topic_id=st.binary(min_size=16, max_size=16),
        leader_epoch=LEADER_EPOCHS,
        configured=st.builds(ConfiguredJobs, config_offset=INT64.map(ConfigOffset), jobs=JOBS),
    ),
    "ConnectWorkerGroupMemberMetadata": st.builds(
        MemberRecord, member_id=MEMBER_IDS, group_epoch=EPOCHS, joined_epoch=EPOCHS, instance_id=INSTANCE_IDS,
        client_id=TEXT, client_host=TEXT, url=URLS, name=TEXT, rebalance_timeout_ms=INT32, session_timeout_ms=INT32,
        connection_grace_ms=INT32, server_assignor=st.none() | TEXT, claims=st.none() | JOBS, draining=st.booleans(),
        client_assignors=st.lists(ASSIGNORS, max_size=3).map(tuple), former=JOBS,
    ),
    "ConnectWorkerGroupTargetAssignment": st.builds(
        TargetWritten, member_id=MEMBER_IDS, assignment_epoch=EPOCHS,
        target=st.builds(TargetOfMember, jobs=JOBS, version=INT16, metadata=BYTES),
    ),
    "ConnectWorkerGroupCurrentMemberAssignment": st.builds(
        CurrentAssignment, member_id=MEMBER_IDS, member_epoch=MEMBER_EPOCHS, previous_epoch=MEMBER_EPOCHS,
        assigned=JOBS, pending=JOBS, job_epochs=st.dictionaries(EPOCHS, JOBS, max_size=3), request_number=INT64,
    ),
    "ConnectWorkerGroupConfiguration": st.builds(ConfigsWritten, configs=st.dictionaries(TEXT, TEXT, max_size=3)),
    "ConnectWorkerGroupDepartedMember": st.builds(
        MemberDeparted, member_id=MEMBER_IDS, instance_id=INSTANCE_IDS, url=URLS, jobs=JOBS, held=JOBS,
        held_until_ms=INT64, left_at_ms=INT64, deadline_ms=st.none() | TIMES, request_number=INT64, reason=TEXT,
    ),
}  # fmt: skip


@EACH
@given(st.data())
def test_any_record_has_the_bytes_of_its_definition_and_is_read_back(name: str, data: st.DataObject) -> None:
    group_id, record = data.draw(TEXT.map(GroupId)), data.draw(ANY[name])
    key, value = encode_record(group_id, record)
    definition = DEFINITIONS[f"{name}Value"]
    assert value == bytes(2) + Encoder(definition).message(values_of(name, record))
    assert decode_record(key, value) == (group_id, record)


@EACH
@given(st.data())
def test_fields_of_newer_versions_are_skipped_in_every_struct(name: str, data: st.DataObject) -> None:
    record = data.draw(ANY[name])
    newer = deepcopy(DEFINITIONS[f"{name}Value"])
    for fields in all_fields(newer):
        fields.append({"name": "Later", "type": "string", "versions": "1+", "tag": 20, "taggedVersions": "1+"})
    values = with_later(newer, newer["fields"], values_of(name, record))
    key, value = encode_record(G, record)
    newer_value = bytes(2) + Encoder(newer).message(values)
    assert newer_value != value
    assert decode_record(key, newer_value) == (G, record)


def all_fields(definition: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The lists of fields of all structs of a definition."""
    pending = [definition, *definition.get("commonStructs", ())]
    while pending:
        struct = pending.pop()
        pending += [field for field in struct["fields"] if "fields" in field]
        yield struct["fields"]


def with_later(definition: Mapping[str, Any], fields: list[dict[str, Any]], values: Mapping[str, Any]) -> Any:
    """``values`` with a value for the field Later in each struct that is not null."""
    found = dict(values)
    for field in fields:
        type_, value = type_of(definition, field), values.get(field["name"])
        if type_.is_struct and value is not None:
            each = [with_later(definition, type_.fields, one) for one in (value if type_.is_array else [value])]
            found[field["name"]] = each if type_.is_array else each[0]
    return found | {"Later": "later"}


@EACH
def test_a_record_with_only_defaults_has_no_tagged_fields(name: str) -> None:
    """The definition and the code have the same defaults."""
    key, value = bytes.fromhex(LITERAL[name][1]), bytes(2) + Encoder(DEFINITIONS[f"{name}Value"]).message({})
    decoded = decode_record(key, value)
    assert decoded is not None
    assert encode_record(*decoded) == (key, value)
    assert value[-1:] == b"\0", "no tagged fields"


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_target_of_100000_tasks_of_one_connector_takes_4_bytes_for_each_task() -> None:
    """An id has 4 bytes, so the ids take 400 kB of the 1 MB of a record. With a struct for each task (the name, the id
    and the number of tagged fields) a name of 10 bytes would already need 1.6 MB."""
    target = TargetOfMember(jobs=jobs_of(1, 100_000))
    _, value = encode_record(G, TargetWritten(member_id=W1, assignment_epoch=GroupEpoch(1), target=target))
    assert value is not None
    assert 400_000 < len(value) < 400_100


def test_a_current_assignment_of_100000_tasks_takes_8_bytes_for_each_task() -> None:
    """The jobs are in it twice, the second time by their epochs: it reaches the limit at 130,000 tasks."""
    jobs = jobs_of(100, 1_000)
    record = CurrentAssignment(
        member_id=W1, member_epoch=MemberEpoch(2), previous_epoch=MemberEpoch(1), assigned=jobs,
        job_epochs={GroupEpoch(2): jobs},
    )  # fmt: skip
    _, value = encode_record(G, record)
    assert value is not None
    assert 800_000 < len(value) < BATCH_SIZE_MAX


# -- hostile bytes -----------------------------------------------------------------------------------------------------

MEMORY_MAX = 200_000
"""What decoding a literal value may allocate, in bytes. The announced elements would need gigabytes."""


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


@EACH
@pytest.mark.parametrize("count", [1_000, 2**31 - 1, 2**32 - 2])
def test_a_count_of_more_elements_than_bytes_is_refused_without_much_memory(name: str, count: int) -> None:
    record, key, _ = LITERAL[name]
    definition, values = DEFINITIONS[f"{name}Value"], values_of(name, record)
    whole = Encoder(definition)
    whole.message(values)
    assert whole.arrays > 0
    for number in range(whole.arrays):
        hostile = bytes(2) + Encoder(definition, hostile_array=number, hostile_count=count).message(values)
        with bounded_memory(), pytest.raises(WireError):
            decode_record(bytes.fromhex(key), hostile)


@EACH
@pytest.mark.parametrize("inserted", ["ffffffff0f", "ffffffff07", "ffffffffffffff", "7fffffff", "00", "80"])
def test_any_byte_may_be_overwritten(name: str, inserted: str) -> None:
    """Each result is a record or a WireError."""
    _, key, value = LITERAL[name]
    data = bytes.fromhex(value)
    other = bytes.fromhex(inserted)
    with bounded_memory():
        for at in range(len(data)):
            with contextlib.suppress(WireError):
                decode_record(bytes.fromhex(key), data[:at] + other + data[at + len(other) :])


@EACH
def test_bytes_after_the_end_are_refused(name: str) -> None:
    _, key, value = LITERAL[name]
    with pytest.raises(WireError, match="1 bytes follow the last value"):
        decode_record(bytes.fromhex(key), bytes.fromhex(value) + b"\0")
    with pytest.raises(WireError, match="1 bytes follow the last value"):
        decode_record(bytes.fromhex(key) + b"\0", bytes.fromhex(value))


@given(st.integers(0, 11), st.binary(max_size=12), st.none() | st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(version: int, key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(WireError):
        decode_record(version.to_bytes(2) + key, value)


@EACH
@given(st.binary(max_size=80))
def test_any_value_is_decoded_or_refused(name: str, value: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_record(bytes.fromhex(LITERAL[name][1]), bytes(2) + value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ConnectWorkerGroupCurrentMemberAssignment",
         "0000 00000001 00 01 01 00 0000 01 01 02 0f 03 00000002 01 01 00 00000002 01 01 00",
         "two entries for one job epoch"),
        ("ConnectWorkerGroupConfiguration", "0000 03 0261 0231 00 0261 0232 00 00", "the name 'a' twice"),
        ("ConnectWorkerGroupMemberMetadata", "0000 00000001 00 01 01 01 01 07 01 02", "the mark of a nullable struct"),
        ("ConnectWorkerGroupDepartedMember", "0000 00 00", "a string is null"),
        ("ConnectWorkerGroupDepartedMember", "0001", "version 1; the only known version is 0: a newer version of"),
        ("ConnectWorkerGroupDepartedMember", "ffff", "version -1; the only known version is 0"),
    ],
)  # fmt: skip
def test_a_contradictory_value_is_refused_with_the_reason(name: str, value: str, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode_record(bytes.fromhex(LITERAL[name][1]), bytes.fromhex(value))


@pytest.mark.parametrize("version", [0, 1, 2, 10, 11, -1])
def test_a_key_of_another_version_is_ignored(version: int) -> None:
    assert decode_record(version.to_bytes(2, signed=True) + b"anything", b"anything") is None


@pytest.mark.parametrize("key", ["", "00", "0003", "0003 0001", "0003 ffff", "0006 0001 67", "0006 0001 67 ffff"])
def test_a_truncated_key_is_refused_for_a_value_and_for_a_tombstone(key: str) -> None:
    for value in (None, b"\0\0"):
        with pytest.raises(WireError):
            decode_record(bytes.fromhex(key), value)
