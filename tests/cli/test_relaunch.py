"""What a worker's process hands on to its next life, and which next lives may take it."""

import json
import os
from dataclasses import replace

import pytest

from coterie.cli import relaunch
from coterie.member.state import MemberSettings
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect import ConnectProtocol
from tests.wire.test_connect_place import PLACE

CLAIMS = Jobs(frozenset({ConnectorName("a"), ConnectorName("b")}), frozenset({ConnectorTaskId(ConnectorName("a"), 1)}))
SETTINGS = MemberSettings(group_id=GroupId("group"), url=WorkerUrl("http://here:8083/"), name="here", claims=CLAIMS)
AS_IT_WAS = replace(PLACE, owes_round=False)


def taken(settings: MemberSettings) -> object:
    return relaunch.decode(settings, relaunch.encode(SETTINGS, AS_IT_WAS))


def open_file(data: bytes) -> int:
    """The number of an open file with ``data``."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return read


def test_whoever_joins_as_before_goes_on_without_a_round() -> None:
    assert taken(SETTINGS) == AS_IT_WAS
    assert taken(replace(SETTINGS, heartbeat_interval_ms=1)) == AS_IT_WAS, "nobody else is told"


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, url=WorkerUrl("http://here:8084/")),
        replace(SETTINGS, name="there"),
        replace(SETTINGS, claims=None),
        replace(SETTINGS, protocols=ConnectProtocol.COMPATIBLE.offered),
        replace(SETTINGS, session_timeout_ms=11_000),
    ],
)
def test_whoever_joins_otherwise_than_before_has_to_join_once_more(settings: MemberSettings) -> None:
    assert taken(settings) == replace(AS_IT_WAS, owes_round=True)


def test_another_member_has_no_place_from_before() -> None:
    assert taken(replace(SETTINGS, group_id=GroupId("another"))) is None
    assert taken(replace(SETTINGS, instance_id=InstanceId("another"))) is None


def test_bytes_of_nobodys_are_refused() -> None:
    for data in (b"", b"{}", b"null", b'{"who": [], "said": "", "place": "x"}'):
        with pytest.raises(WireError):
            relaunch.decode(SETTINGS, data)


def test_what_another_release_has_handed_on_is_not_read() -> None:
    handed = json.loads(relaunch.encode(SETTINGS, AS_IT_WAS))
    with pytest.raises(WireError, match="of version 0, and this is 1"):
        relaunch.decode(SETTINGS, json.dumps({**handed, "version": 0}).encode())


@pytest.mark.parametrize("said", ["abc", "", "-1", "4000000"])
def test_a_place_that_cannot_be_read_is_lost_and_the_worker_joins_as_a_new_member(
    said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(relaunch.PLACE_VARIABLE, said)
    assert relaunch.handed_on(SETTINGS) is None
    assert "it joins as a new member" in caplog.text


def test_a_place_of_bytes_that_mean_nothing_is_lost_as_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(relaunch.PLACE_VARIABLE, str(open_file(b"{}")))
    assert relaunch.handed_on(SETTINGS) is None
    assert "it joins as a new member" in caplog.text


def test_a_process_that_nobody_handed_anything_on_to_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(relaunch.PLACE_VARIABLE, raising=False)
    assert relaunch.handed_on(SETTINGS) is None


def test_what_is_handed_on_is_read_once_and_its_file_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = open_file(relaunch.encode(SETTINGS, AS_IT_WAS))
    monkeypatch.setenv(relaunch.PLACE_VARIABLE, str(read))
    assert relaunch.handed_on(SETTINGS) == AS_IT_WAS
    assert relaunch.PLACE_VARIABLE not in os.environ
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
