"""The embedded Connect protocol against bytes of a real Connect, and against hostile ones."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect import AssignmentErrorCode, ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import (
    decode_version_and_assignment,
    decode_version_and_metadata,
    encode_assignment,
    encode_metadata,
)
from tests.wire.recorded import assignment_of, jobs_of

OURS = json.loads((Path(__file__).parent / "vectors" / "connect-v3.json").read_text())
RECORDED = json.loads((Path(__file__).parent / "vectors" / "connect-wire.json").read_text())

URL = WorkerUrl("http://h:8083/")
FOUR = ConfigOffset(4)
C1 = Jobs.of([ConnectorName("c1"), ConnectorTaskId(ConnectorName("c1"), 0)])
URL_AND_OFFSET = "000e687474703a2f2f683a383038332f0000000000000004"
C1_BYTES = "000000010002633100000002ffffffff00000000"


def assignment_of_leader_m1(**more: Any) -> WorkerAssignment:
    return WorkerAssignment(leader=MemberId("m1"), leader_url=URL, config_offset=FOUR, assigned=C1, **more)


# -- vectors made from Connect's schemas -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "metadata", "expected"),
    [
        (ConnectProtocol.EAGER, WorkerMetadata(url=URL, config_offset=FOUR), "0000" + URL_AND_OFFSET),
        (ConnectProtocol.COMPATIBLE, WorkerMetadata(url=URL, config_offset=FOUR), "0001" + URL_AND_OFFSET + "ffffffff"),
        (ConnectProtocol.SESSIONED, WorkerMetadata(url=URL, config_offset=FOUR), "0002" + URL_AND_OFFSET + "ffffffff"),
        (
            ConnectProtocol.SESSIONED,
            WorkerMetadata(url=URL, config_offset=FOUR, allocation=assignment_of_leader_m1()),
            "0002" + URL_AND_OFFSET + "0000003c" + "0002000000026d31" + URL_AND_OFFSET + C1_BYTES + "0000000000000000",
        ),
    ],
)
def test_encoded_metadata_has_exactly_connects_bytes(
    protocol: ConnectProtocol, metadata: WorkerMetadata, expected: str
) -> None:
    assert encode_metadata(protocol, metadata).hex() == expected
    assert decode_version_and_metadata(bytes.fromhex(expected)) == (protocol, metadata)


@pytest.mark.parametrize(
    ("protocol", "assignment", "expected"),
    [
        (ConnectProtocol.EAGER, assignment_of_leader_m1(), "0000000000026d31" + URL_AND_OFFSET + C1_BYTES),
        (
            ConnectProtocol.SESSIONED,
            assignment_of_leader_m1(revoked=Jobs.of([ConnectorTaskId(ConnectorName("c2"), 1)]), delay_ms=300_000),
            "0002000000026d31" + URL_AND_OFFSET + C1_BYTES + "00000001000263320000000100000001000493e0",
        ),
    ],
)
def test_an_encoded_assignment_has_exactly_connects_bytes(
    protocol: ConnectProtocol, assignment: WorkerAssignment, expected: str
) -> None:
    assert encode_assignment(protocol, assignment).hex() == expected
    assert decode_version_and_assignment(bytes.fromhex(expected)) == (protocol, assignment)


# -- what a real Connect 4.3.1 sent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", RECORDED["metadata"], ids=lambda vector: f"{vector['when']}-{vector['protocol']}")
def test_recorded_metadata_is_decoded_and_encoded_to_the_same_bytes(vector: Mapping[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    version, metadata = decode_version_and_metadata(data)
    decoded = vector["decoded"]
    allocation = decoded.get("allocation")
    assert version == decoded["version"]
    assert metadata == WorkerMetadata(
        url=WorkerUrl(decoded["url"]),
        config_offset=ConfigOffset(decoded["config_offset"]),
        allocation=assignment_of(allocation) if allocation else None,
    )
    assert encode_metadata(ConnectProtocol(version), metadata) == data


@pytest.mark.parametrize(
    "vector", RECORDED["assignments"], ids=lambda vector: f"{vector['when']}-{vector['generation']}"
)
def test_recorded_assignments_are_decoded_and_encoded_to_the_same_bytes(vector: Mapping[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    version, assignment = decode_version_and_assignment(data)
    assert version == vector["decoded"]["version"]
    assert assignment == assignment_of(vector["decoded"])
    assert encode_assignment(ConnectProtocol(version), assignment) == data


# -- our own v3 --------------------------------------------------------------------------------------------------------


def metadata_from_vector(decoded: Mapping[str, Any]) -> WorkerMetadata:
    allocation, opaque = decoded["allocation"], decoded["opaque"]
    connectors, tasks = decoded["static_connectors"], decoded["static_tasks"]
    return WorkerMetadata(
        url=WorkerUrl(decoded["url"]),
        config_offset=ConfigOffset(decoded["config_offset"]),
        allocation=assignment_of({"error": 0, **allocation}) if allocation else None,
        static_connectors=None if connectors is None else frozenset(map(ConnectorName, connectors)),
        static_tasks=None if tasks is None else jobs_of(tasks).tasks,
        draining=decoded["draining"],
        opaque=None if opaque is None else bytes.fromhex(opaque),
    )


@pytest.mark.parametrize("vector", OURS["metadata"], ids=lambda vector: str(vector["what"]))
def test_static_metadata_has_the_specified_bytes(vector: Mapping[str, Any]) -> None:
    data, metadata = bytes.fromhex(vector["hex"]), metadata_from_vector(vector["decoded"])
    assert decode_version_and_metadata(data) == (ConnectProtocol.STATIC, metadata)
    assert encode_metadata(ConnectProtocol.STATIC, metadata) == data


@pytest.mark.parametrize("vector", OURS["metadata"], ids=lambda vector: str(vector["what"]))
def test_static_metadata_that_ends_early_has_defaults_or_is_refused(vector: Mapping[str, Any]) -> None:
    data, whole = bytes.fromhex(vector["hex"]), metadata_from_vector(vector["decoded"])
    for size in range(len(data)):
        try:
            _, metadata = decode_version_and_metadata(data[:size])
        except WireError:
            continue
        assert metadata.url == whole.url
        assert metadata.static_connectors in (None, whole.static_connectors)
        assert metadata.static_tasks in (None, whole.static_tasks)


def test_bytes_after_older_metadata_are_not_read_as_claims() -> None:
    for version in ("0001", "0002"):
        data = version + URL_AND_OFFSET + "ffffffff" + "00000001000161" + "ffffffff" + "01" + "ffffffff"
        assert decode_version_and_metadata(bytes.fromhex(data))[1] == WorkerMetadata(url=URL, config_offset=FOUR)


def test_older_protocols_encode_no_claims() -> None:
    plain = WorkerMetadata(url=URL, config_offset=FOUR)
    claims = WorkerMetadata(
        url=URL, config_offset=FOUR, static_connectors=frozenset({ConnectorName("a")}), draining=True, opaque=b"x"
    )
    for protocol in (ConnectProtocol.EAGER, ConnectProtocol.COMPATIBLE, ConnectProtocol.SESSIONED):
        assert encode_metadata(protocol, claims) == encode_metadata(protocol, plain)


@pytest.mark.parametrize(
    "end",
    [
        "7fffffff",
        "fffffffe",
        "000000010005",
        "00000001ffff",
        "ffffffff" + "7fffffff",
        "ffffffff" + "000000010001617fffffff",
        "ffffffff" + "00000001000161" + "00000001" + "ffffffff",
        "ffffffff" + "ffffffff" + "00" + "7fffffff",
    ],
    ids=[
        "connectors", "negative count", "name too long", "null name", "tasks", "numbers", "the connector as a task",
        "opaque too long",
    ],
)  # fmt: skip
def test_malformed_claims_are_refused(end: str) -> None:
    with pytest.raises(WireError):
        decode_version_and_metadata(bytes.fromhex("0003" + URL_AND_OFFSET + "ffffffff" + end))


# -- tolerance -------------------------------------------------------------------------------------------------------


def test_a_newer_worker_reads_the_metadata_of_an_older_one() -> None:
    version, metadata = decode_version_and_metadata(bytes.fromhex("0001" + URL_AND_OFFSET))
    assert (version, metadata.allocation) == (1, None)


def test_an_older_worker_ignores_what_a_newer_one_appends() -> None:
    version, assignment = decode_version_and_assignment(
        bytes.fromhex("0003000000026d31" + URL_AND_OFFSET + C1_BYTES + "00" * 11)
    )
    assert (version, assignment.assigned) == (3, C1)


def test_fields_missing_at_the_end_of_an_assignment_take_their_defaults() -> None:
    _, assignment = decode_version_and_assignment(bytes.fromhex("0002000000026d31" + URL_AND_OFFSET))
    assert (assignment.assigned, assignment.revoked, assignment.delay_ms) == (Jobs(), Jobs(), 0)


def test_null_arrays_are_empty() -> None:
    _, assignment = decode_version_and_assignment(
        bytes.fromhex("0001000000026d31" + URL_AND_OFFSET + "ffffffff" + "000000010002633cffffffff" + "00000007")
    )
    assert (assignment.assigned, assignment.revoked, assignment.delay_ms) == (Jobs(), Jobs(), 7)


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "00",
        "ffff" + URL_AND_OFFSET,
        "0000" + "ffff" + "0000000000000004",
        "0000" + "7fff" + "61",
        "0000" + "0002c328" + "0000000000000004",
        "0001" + URL_AND_OFFSET + "7fffffff",
        "0001" + URL_AND_OFFSET + "fffffffe",
    ],
    ids=[
        "nothing", "half a version", "negative version", "null url", "url too long", "not UTF-8",
        "allocation too long", "negative length",
    ],
)  # fmt: skip
def test_malformed_metadata_is_refused(hostile: str) -> None:
    with pytest.raises(WireError):
        decode_version_and_metadata(bytes.fromhex(hostile))


@pytest.mark.parametrize(
    "array",
    ["7fffffff", "fffffffe", "00000001000263317fffffff", "000000010002633100000001fffffffe", "000000ff"],
    ids=["count", "negative count", "tasks", "task -2", "more than is left"],
)
def test_malformed_jobs_are_refused(array: str) -> None:
    with pytest.raises(WireError):
        decode_version_and_assignment(bytes.fromhex("0002000000026d31" + URL_AND_OFFSET + array))


# -- any bytes, any values ---------------------------------------------------------------------------------------------

# What str.isprintable allows, so that hypothesis need not discard characters.
names = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=20)
jobs = st.builds(
    Jobs,
    st.frozensets(st.builds(ConnectorName, names), max_size=5),
    st.frozensets(st.builds(ConnectorTaskId, st.builds(ConnectorName, names), st.integers(0, 2**31 - 1)), max_size=8),
)
offsets = st.builds(ConfigOffset, st.integers(-1, 2**63 - 1))
assignments = st.builds(
    WorkerAssignment,
    error=st.sampled_from(AssignmentErrorCode),
    leader=st.builds(MemberId, names),
    leader_url=st.builds(WorkerUrl, names),
    config_offset=offsets,
    assigned=jobs,
    revoked=jobs,
    delay_ms=st.integers(0, 2**31 - 1),
)
metadata_ = st.builds(
    WorkerMetadata, url=st.builds(WorkerUrl, names), config_offset=offsets, allocation=st.none() | assignments
)
claims = st.builds(
    WorkerMetadata,
    url=st.builds(WorkerUrl, names),
    config_offset=offsets,
    allocation=st.none() | assignments,
    static_connectors=st.none() | jobs.map(lambda some: some.connectors),
    static_tasks=st.none() | jobs.map(lambda some: some.tasks),
    draining=st.booleans(),
    opaque=st.none() | st.binary(max_size=20),
)
cooperative = st.sampled_from([ConnectProtocol.COMPATIBLE, ConnectProtocol.SESSIONED, ConnectProtocol.STATIC])


@given(cooperative, metadata_)
def test_metadata_is_unchanged_by_encoding_and_decoding(protocol: ConnectProtocol, metadata: WorkerMetadata) -> None:
    assert decode_version_and_metadata(encode_metadata(protocol, metadata)) == (protocol, metadata)


@given(cooperative, assignments)
def test_assignments_are_unchanged_by_encoding_and_decoding(
    protocol: ConnectProtocol, assignment: WorkerAssignment
) -> None:
    assert decode_version_and_assignment(encode_assignment(protocol, assignment)) == (protocol, assignment)


def test_a_delay_above_the_wires_maximum_is_encoded_as_the_maximum() -> None:
    encoded = encode_assignment(ConnectProtocol.STATIC, assignment_of_leader_m1(delay_ms=99_999_999_999))
    assert decode_version_and_assignment(encoded)[1].delay_ms == 2**31 - 1


@given(claims)
def test_claims_are_unchanged_by_encoding_and_decoding(metadata: WorkerMetadata) -> None:
    assert decode_version_and_metadata(encode_metadata(ConnectProtocol.STATIC, metadata)) == (
        ConnectProtocol.STATIC,
        metadata,
    )


@given(claims, st.data())
def test_a_flipped_bit_is_read_or_refused(metadata: WorkerMetadata, data: st.DataObject) -> None:
    encoded = bytearray(encode_metadata(ConnectProtocol.STATIC, metadata))
    at = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[at // 8] ^= 1 << at % 8
    with contextlib.suppress(WireError):
        decode_version_and_metadata(bytes(encoded))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_version_and_metadata, decode_version_and_assignment):
        try:
            decode(data)
        except WireError:
            continue
