"""Real members and the real coordinator in one process: what they do together, without faults and with them."""

import pytest

from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Leave, SuspendMembership
from tests.member.connect.group_play import GroupPlay, jobs_up_to, play_with_faults

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_job_runs_twice_and_the_group_settles_after_faults(seed: int) -> None:
    play_with_faults(seed).settle()


@pytest.fixture
def play() -> GroupPlay:
    """Two workers with three jobs each, settled; no faults."""
    play = GroupPlay(0, is_faulty=False)
    play.delay_ms = 0
    play.configure(jobs_up_to(5))
    play.start("w0")
    play.start("w1")
    play.run(5_000)
    assert [len(process.running) for process in play.processes] == [3, 3]
    play.requests.clear()
    return play


def test_settled_members_send_one_heartbeat_for_each_hold_and_write_nothing(play: GroupPlay) -> None:
    records = len(play.coordinator.log)
    play.run(play.now_ms + 60_000)
    assert len(play.coordinator.log) == records
    assert all(55 <= count <= 60 for count in play.requests.values()), play.requests


def test_a_newcomer_takes_jobs_and_no_other_job_stops(play: GroupPlay) -> None:
    stopped = {process.member_id: process.running for process in play.processes}
    newcomer = play.start("w2")
    play.run(play.now_ms + 500)
    assert len(newcomer.running) == 2
    for process in play.processes[:2]:
        assert len(stopped[process.member_id] - process.running) == 1
        assert process.losses == 0


def test_a_restart_of_the_coordinator_stops_no_job(play: GroupPlay) -> None:
    before = [process.running for process in play.processes]
    for _ in range(5):
        play.crash()
        play.run(play.now_ms + 700)
        assert [process.running for process in play.processes] == before
    play.run(play.now_ms + 20_000)
    assert [process.losses for process in play.processes] == [0, 0]


def test_the_jobs_of_a_killed_worker_run_elsewhere_after_the_grace_of_its_connection(play: GroupPlay) -> None:
    play.run(play.now_ms + 100)
    play.kill(play.processes[1], with_fin=True)
    play.run(play.now_ms + 2_300)
    assert play.processes[0].running == play.configured


def test_the_jobs_of_a_worker_that_leaves_run_elsewhere_at_once(play: GroupPlay) -> None:
    play.processes[1].end(Leave(reason="play", is_permanent=True))
    play.run(play.now_ms + 500)
    assert play.processes[0].running == play.configured


def test_an_assignor_that_asks_for_a_target_causes_one_computation_and_no_job_stops(play: GroupPlay) -> None:
    group, before = play.coordinator.group, [process.running for process in play.processes]
    for reason, metadata in ((2, b"other"), (3, b"other"), (3, b"other"), (0, b"more")):
        epoch = group.group_epoch
        play.processes[1].update_assignor(metadata, reason)
        play.run(play.now_ms + 3_000)
        assert group.group_epoch == group.assignment_epoch == epoch + 1
        (known,) = group.members[play.processes[1].member_id].client_assignors
        assert (known.metadata, known.reason) == (metadata, 0)
    assert [process.running for process in play.processes] == before
    assert [process.losses for process in play.processes] == [0, 0]


def test_a_relaunched_worker_keeps_its_jobs(play: GroupPlay) -> None:
    """The next process starts after the grace of the connection."""
    old = play.processes[1]
    jobs = old.running
    records = len(play.coordinator.log)
    old.end(SuspendMembership())
    play.run(play.now_ms + 6_000)
    new = play.processes[2]
    assert not old.is_alive
    assert (new.member_id, new.running, new.losses) == (old.member_id, jobs, 0)
    assert len(play.coordinator.log) == records
    assert play.processes[0].losses == 0


def test_a_paused_worker_stops_its_jobs_and_takes_its_place_again(play: GroupPlay) -> None:
    paused = play.processes[1]
    paused.paused_until_ms = play.now_ms + 20_000
    play.run(play.now_ms + 15_000)
    assert play.processes[0].running == play.configured
    play.run(play.now_ms + 20_000)
    assert paused.losses == 1
    assert play.zombie_overlaps > 0
    play.settle()
    assert len(paused.running) == 3


def test_a_group_without_configured_jobs_settles_with_none(play: GroupPlay) -> None:
    play.configure(NO_JOBS)
    play.run(play.now_ms + 1_000)
    assert [process.running for process in play.processes] == [NO_JOBS, NO_JOBS]
