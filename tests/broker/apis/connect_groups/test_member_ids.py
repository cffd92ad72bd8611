"""The member id is the only proof of identity within a group, as in KIP-848: what a second client can do with the id of
a member, and what it cannot do."""

from dataclasses import replace
from typing import Any

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.nouns.connect_error_codes import ConnectErrorCode as E
from coterie.nouns.jobs import NO_JOBS
from coterie.wire.connect_group_jobs import job_arrays
from tests.broker.apis.connect_groups.scene import Scene, check_members_are_served, picture, scene_of
from tests.broker.apis.connect_groups.worker import JOBS, Worker
from tests.broker.conftest import Connect, ThreadedBroker

GUESSED_NUMBER = 1_000
"""A request number that is above those of the member."""


@pytest.fixture
def settings(settings: BrokerSettings) -> BrokerSettings:
    """Sessions that last longer than a test."""
    return replace(settings, connect_groups=replace(settings.connect_groups, session_timeout_ms=60_000))


@pytest.fixture
def scene(broker: ThreadedBroker, connect: Connect) -> Scene:
    return scene_of(broker, connect)


@pytest.fixture
def other(scene: Scene) -> Worker:
    """A second client, which sends the ids of the member w1 over another connection."""
    worker = Worker(scene.client, "w1", instance_id="i1")
    worker.number = GUESSED_NUMBER
    return worker


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_epoch": 1, "full": True}, E.FENCED_MEMBER_EPOCH),
        ({"member_epoch": 3, "full": True}, E.FENCED_MEMBER_EPOCH),
        ({"member_epoch": 2, "request_number": 1}, E.STALE_REQUEST),
        ({"member_epoch": 0, "request_number": 1, "full": True}, E.STALE_REQUEST),
        ({"member_epoch": -1, "request_number": 1}, E.STALE_REQUEST),
        ({"member_epoch": 0, "full": True, "instance_id": "i2"}, E.FENCED_INSTANCE_ID),
        ({"member_epoch": 2, "full": True, "connectors_and_tasks": job_arrays(JOBS)}, E.FENCED_MEMBER_EPOCH),
    ],
    ids=["an earlier epoch", "a later epoch", "an old number", "an old join", "an old leave", "another instance id",
         "jobs of others"],
)  # fmt: skip
def test_a_second_client_with_a_members_id_and_a_wrong_epoch_or_number_is_refused_and_nothing_is_lost(
    scene: Scene, other: Worker, fields: dict[str, Any], error: E
) -> None:
    before = picture(scene)
    assert other.beat(**fields).error_code == error
    assert picture(scene) == before
    assert scene.member.beat().error_code == 0, "on its own connection, with its own next number"
    check_members_are_served(scene)


def test_a_second_client_that_joins_with_a_members_id_is_that_member_and_no_other_member_is_concerned(
    scene: Scene, other: Worker
) -> None:
    """It is the return of a member that has nothing any more: it gets the jobs of the target that stands, at once."""
    leader, first = scene.leader, scene.member
    before, had = picture(scene), first.owned
    joined = other.beat()
    assert (joined.error_code, other.epoch, other.owned) == (0, 2, had)
    after = picture(scene)
    assert after.described.group_epoch == before.described.group_epoch + 1, "a join"
    assert after.described.members[0] == before.described.members[0]
    assert after.sessions["w0"] == before.sessions["w0"]

    # The first process runs its jobs, too, until its lease ends: none of its requests is accepted.
    for _ in range(2):
        assert first.beat(full=True).error_code == E.STALE_REQUEST, "it sends all fields next, also after its lease"
        first.epoch, first.owned = 0, NO_JOBS
    leader.beat()
    leader.compute()
    for worker in (leader, other):
        assert worker.beat(full=True).error_code == 0
        assert worker.acknowledge().error_code == 0
    assert (leader.owned | other.owned, leader.epoch, other.epoch) == (JOBS, 3, 3)
    first.number, first.epoch, first.owned = other.number, 2, had
    assert first.beat(full=True).error_code == 0, "with a greater number and the previous epoch it is that member, too"


def test_a_second_client_that_leaves_with_a_members_id_ends_that_membership(scene: Scene, other: Worker) -> None:
    leader, first = scene.leader, scene.member
    before = picture(scene)
    assert other.beat(member_epoch=-1).error_code == 0
    after = picture(scene)
    assert [one.member_id for one in after.described.members] == ["w0"]
    assert after.described.members[0] == before.described.members[0]
    assert after.sessions == {"w0": before.sessions["w0"]}
    assert first.beat().error_code == E.UNKNOWN_MEMBER_ID, "it stops its jobs, and joins with the epoch 0"
    leader.settle()
    assert leader.owned == JOBS
    first.epoch, first.owned = 0, NO_JOBS
    assert first.beat().error_code == 0
