"""Requests of connect groups become events with all their fields."""

import copy
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from coterie.broker.apis.connect_groups.events import (
    describe_event,
    heartbeat_event,
    install_assignment_event,
    prepare_assignment_event,
)
from coterie.groups.connect.messages import DescribeGroup, Heartbeat, InstallAssignment, PrepareAssignment
from coterie.nouns.connect_groups import Claims, ConfiguredJobs, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import ComputedTarget, DeferredJobs, TargetOfMember, UnplaceableJobs
from coterie.wire.connect_group_jobs import InvalidFieldError
from coterie.wire.kio_entities import build_request
from tests.wire.connect_group_definitions import DEFINITIONS, entity_values, filled

REPLY_TO = ReplyTo(3)
HEARTBEAT, PREPARE, INSTALL = (
    f"ConnectGroup{name}Request" for name in ("Heartbeat", "PrepareAssignment", "InstallAssignment")
)
Json = dict[str, Any]


def to_heartbeat(body: Any) -> Heartbeat:
    return heartbeat_event(body, reply_to=REPLY_TO, connection=4, client_id="client", client_host="/10.0.0.7")


TRANSLATIONS: Mapping[str, Callable[[Any], object]] = {
    HEARTBEAT: to_heartbeat,
    PREPARE: lambda body: prepare_assignment_event(body, reply_to=REPLY_TO),
    INSTALL: lambda body: install_assignment_event(body, reply_to=REPLY_TO),
}


def event(name: str, values: Mapping[str, Any]) -> Any:
    definition = DEFINITIONS[name]
    return TRANSLATIONS[name](build_request(definition["apiKey"], 0, entity_values(definition, values)))


def jobs(*names: str) -> Jobs:
    return Jobs.of(ConnectorTaskId.parse(name) if "-" in name else ConnectorName(name) for name in names)


def arrays(connector: str, *task_ids: int) -> Json:
    return {"Connectors": [connector], "Tasks": [{"ConnectorId": connector, "TaskIds": list(task_ids)}]}


TOPIC_ID = uuid.UUID(int=77)
ASSIGNOR = {"Name": "a", "MinimumVersion": 1, "MaximumVersion": 2, "Reason": 3, "Version": 4, "Metadata": "05"}
FULL_HEARTBEAT: Json = {
    "GroupId": "g", "MemberId": "m", "MemberEpoch": 11, "InstanceId": "i", "RebalanceTimeoutMs": 12,
    "ServerAssignor": "s", "ClientAssignors": [ASSIGNOR, ASSIGNOR | {"Name": "b"}],
    "ConnectorsAndTasks": arrays("owned", 0, 1), "Url": "http://u", "Name": "n", "ConfigOffset": 13,
    "ConfigTopicId": str(TOPIC_ID), "Configured": {"ConfigOffset": 14, **arrays("configured", 2)},
    "Claims": {"Wildcard": False, **arrays("claimed", 3)}, "Draining": 1, "MaxWaitMs": 15, "RequestNumber": 16,
    "ConnectionGraceMs": 17, "Resumes": True,
}  # fmt: skip
FULL_INSTALL: Json = {
    "GroupId": "g", "MemberId": "m", "MemberEpoch": 11, "GroupEpoch": 12, "Error": 13,
    "Members": [
        {"MemberId": "m1", "ConnectorsAndTasks": arrays("c", 0), "Version": 14, "Metadata": "15"},
        {"MemberId": "m2", "ConnectorsAndTasks": arrays("d", 0), "Version": 16, "Metadata": "17"},
    ],
    "Deferred": [{"MemberId": "m3", "DelayMs": 18, **arrays("e", 0)}],
    "Unplaceable": [{"Reason": "why", **arrays("f", 0)}],
    "NextInMs": 19,
}  # fmt: skip
FULL = {HEARTBEAT: FULL_HEARTBEAT, INSTALL: FULL_INSTALL, PREPARE: filled(DEFINITIONS[PREPARE])}


def test_a_heartbeat_has_all_fields_of_its_request() -> None:
    def assignor(name: str) -> SupportedAssignor:
        return SupportedAssignor(name=name, minimum_version=1, maximum_version=2, reason=3, version=4, metadata=b"\x05")

    assert event(HEARTBEAT, FULL_HEARTBEAT) == Heartbeat(
        reply_to=REPLY_TO,
        connection_number=4,
        client_id="client",
        client_host="/10.0.0.7",
        member_id=MemberId("m"),
        member_epoch=MemberEpoch(11),
        request_number=16,
        instance_id=InstanceId("i"),
        rebalance_timeout_ms=12,
        server_assignor="s",
        client_assignors=(assignor("a"), assignor("b")),
        owned=jobs("owned", "owned-0", "owned-1"),
        url=WorkerUrl("http://u"),
        name="n",
        config_offset=ConfigOffset(13),
        config_topic_id=TOPIC_ID.bytes,
        configured=ConfiguredJobs(config_offset=ConfigOffset(14), jobs=jobs("configured", "configured-2")),
        claims=Claims(jobs=jobs("claimed", "claimed-3")),
        draining=True,
        max_wait_ms=15,
        connection_grace_ms=17,
        resumes=True,
    )


def test_a_field_of_a_heartbeat_that_has_not_changed_is_none() -> None:
    fields = {"GroupId": "g", "MemberId": "m", "MemberEpoch": 5}
    assert event(HEARTBEAT, fields) == Heartbeat(
        reply_to=REPLY_TO,
        connection_number=4,
        client_id="client",
        client_host="/10.0.0.7",
        member_id=MemberId("m"),
        member_epoch=MemberEpoch(5),
    )


def test_empty_is_not_none() -> None:
    fields = FULL_HEARTBEAT | {
        "ClientAssignors": [], "ConnectorsAndTasks": {"Connectors": [], "Tasks": []}, "Url": "", "Name": "",
        "ConfigOffset": -1, "Claims": {"Wildcard": True, "Connectors": [], "Tasks": []}, "Draining": 0,
        "RebalanceTimeoutMs": 0, "ConnectionGraceMs": 0,
    }  # fmt: skip
    got = event(HEARTBEAT, fields)
    assert (got.client_assignors, got.owned, got.url, got.name) == ((), jobs(), "", "")
    assert (got.config_offset, got.claims, got.draining) == (-1, Claims(jobs=None), False)
    assert (got.rebalance_timeout_ms, got.connection_grace_ms) == (0, 0)


def test_a_prepare_has_all_fields_of_its_request() -> None:
    assert event(PREPARE, {"GroupId": "g", "MemberId": "m", "MemberEpoch": 9}) == PrepareAssignment(
        reply_to=REPLY_TO, member_id=MemberId("m"), member_epoch=MemberEpoch(9)
    )


def test_an_install_has_all_fields_of_its_request() -> None:
    assert event(INSTALL, FULL_INSTALL) == InstallAssignment(
        reply_to=REPLY_TO,
        member_id=MemberId("m"),
        member_epoch=MemberEpoch(11),
        group_epoch=GroupEpoch(12),
        assignor_error=13,
        target=ComputedTarget(
            members={
                MemberId("m1"): TargetOfMember(jobs=jobs("c", "c-0"), version=14, metadata=b"\x15"),
                MemberId("m2"): TargetOfMember(jobs=jobs("d", "d-0"), version=16, metadata=b"\x17"),
            },
            deferred={MemberId("m3"): DeferredJobs(jobs=jobs("e", "e-0"), delay_ms=18)},
            unplaceable=(UnplaceableJobs(jobs=jobs("f", "f-0"), reason="why"),),
            next_in_ms=19,
        ),
    )
    without = {key: value for key, value in FULL_INSTALL.items() if key not in ("Deferred", "Unplaceable", "NextInMs")}
    target = event(INSTALL, without).target
    assert (target.deferred, target.unplaceable, target.next_in_ms) == ({}, (), None)


def test_members_and_jobs_that_an_install_lists_twice_are_reported() -> None:
    one, two = FULL_INSTALL["Members"]
    (deferred,), (unplaceable,) = FULL_INSTALL["Deferred"], FULL_INSTALL["Unplaceable"]
    for change, members, repeated in (
        ({"Members": [one, two, one]}, {"m1"}, jobs("c", "c-0")),
        ({"Members": [one, two | {"ConnectorsAndTasks": arrays("c", 1)}]}, set(), jobs("c")),
        ({"Deferred": [deferred, deferred | arrays("g")]}, {"m3"}, jobs()),
        ({"Deferred": [deferred | arrays("d", 0)]}, set(), jobs("d", "d-0")),
        ({"Unplaceable": [unplaceable, unplaceable]}, set(), jobs("f", "f-0")),
        ({"Unplaceable": [unplaceable | arrays("e", 0)]}, set(), jobs("e", "e-0")),
    ):
        got = event(INSTALL, FULL_INSTALL | change)
        assert (got.members_listed_twice, got.jobs_listed_twice) == (frozenset(members), repeated)


def test_a_describe_asks_for_the_members() -> None:
    assert describe_event(reply_to=REPLY_TO) == DescribeGroup(reply_to=REPLY_TO, includes_members=True)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (HEARTBEAT, {"RebalanceTimeoutMs": -2}, "RebalanceTimeoutMs is -2; the lowest allowed value is -1"),
        (HEARTBEAT, {"ConfigOffset": -3}, "ConfigOffset is -3; the lowest allowed value is -2"),
        (HEARTBEAT, {"Configured": {"ConfigOffset": -2, **arrays("c")}}, "Configured.ConfigOffset is -2"),
        (HEARTBEAT, {"Draining": 2}, "Draining is 2; the highest allowed value is 1"),
        (HEARTBEAT, {"Draining": -2}, "Draining is -2; the lowest allowed value is -1"),
        (HEARTBEAT, {"ConnectionGraceMs": -2}, "ConnectionGraceMs is -2; the lowest allowed value is -1"),
        (HEARTBEAT, {"Claims": {"Wildcard": True, **arrays("c")}}, "Claims has Wildcard, but also lists jobs"),
        (HEARTBEAT, {"ConnectorsAndTasks": arrays("")}, "the name of a connector is empty"),
        (HEARTBEAT, {"Configured": {"ConfigOffset": 1, **arrays("c", -4)}}, "connector 'c' has the task number -4"),
        (INSTALL, {"NextInMs": -2}, "NextInMs is -2; the lowest allowed value is -1"),
        (INSTALL, {"Deferred": [{"MemberId": "m", "DelayMs": -1, **arrays("e")}]}, "Deferred.DelayMs is -1"),
        (INSTALL, {"Unplaceable": [{"Reason": "", **arrays("c", -1)}]}, "connector 'c' has the task number -1"),
    ],
)
def test_a_value_that_the_protocol_does_not_allow_is_refused(name: str, change: Json, message: str) -> None:
    with pytest.raises(InvalidFieldError, match=message):
        event(name, FULL[name] | change)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths to all values in nested mappings and lists."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from leaves(inner, (*path, key))
        case list():
            for number, inner in enumerate(value):
                yield from leaves(inner, (*path, number))
        case _:
            yield path


def with_another_value(values: Json, path: tuple[str | int, ...]) -> Json:
    changed = copy.deepcopy(values)
    inner: Any = changed
    for step in path[:-1]:
        inner = inner[step]
    match inner[path[-1]]:
        case bool() as value:
            inner[path[-1]] = not value
        case int() as value:
            inner[path[-1]] = value - 1 if path == ("Draining",) else value + 1
        case text if path == ("ConfigTopicId",):
            inner[path[-1]] = str(uuid.UUID(int=uuid.UUID(text).int + 1))
        case text:
            inner[path[-1]] = "99" if path[-1] == "Metadata" else text + "x"
    return changed


@pytest.mark.parametrize("name", sorted(TRANSLATIONS))
def test_a_change_of_any_field_of_a_request_changes_the_event(name: str) -> None:
    full = FULL[name]
    assert set(full) == {field["name"] for field in DEFINITIONS[name]["fields"]}
    without_effect = []
    for path in leaves(full):
        try:
            if event(name, with_another_value(full, path)) == event(name, full):
                without_effect.append(path)
        except InvalidFieldError:
            assert path == ("Claims", "Wildcard")
    assert without_effect == [("GroupId",)]  # names the machine
