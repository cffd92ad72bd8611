"""How long a member may take to give back revoked jobs."""

from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, TargetOfMember
from tests.groups.connect.builders import JOBS, Conversation

W0, W1 = MemberId("w0"), MemberId("w1")
TIMEOUT_MS = 3_000
FIRST, SECOND, *_ = JOBS


class Revocations:
    """Two members, of which the first has all jobs, and little time to give them back."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.owned = JOBS
        self.conversation.beat("w0", rebalance_timeout_ms=TIMEOUT_MS)
        self.conversation.compute("w0")
        self.conversation.beat("w0", rebalance_timeout_ms=TIMEOUT_MS)
        self.conversation.beat("w1")
        self.conversation.compute("w0", self.target(JOBS))

    def target(self, of_w0: Jobs) -> ComputedTarget:
        return ComputedTarget(members={W0: TargetOfMember(jobs=of_w0), W1: TargetOfMember(jobs=JOBS - of_w0)})

    def beat(self) -> ConnectErrorCode:
        """w0 sends a heartbeat with the jobs that it owns."""
        current = self.conversation.coordinator.group.currents.get(W0)
        assert current is not None
        epoch = current.member_epoch
        return self.conversation.beat("w0", epoch, owned=self.owned, rebalance_timeout_ms=TIMEOUT_MS).error

    def revoke(self, *jobs: Job) -> None:
        """A new target takes the jobs from w0, which receives that."""
        self.conversation.beat("w1", self.conversation.coordinator.group.currents[W1].member_epoch, draining=True)
        self.conversation.beat("w1", self.conversation.coordinator.group.currents[W1].member_epoch, draining=False)
        kept = self.conversation.coordinator.group.targets[W0].target.jobs - Jobs.of(jobs)
        self.conversation.compute("w0", self.target(kept))
        assert self.beat() is ConnectErrorCode.NONE

    def stop(self, job: Job) -> None:
        self.owned -= Jobs.of([job])
        assert self.beat() is ConnectErrorCode.NONE

    def wait(self, ms: int) -> None:
        self.conversation.now_ms += ms
        self.conversation.coordinator.fire_due(self.conversation.now_ms)

    @property
    def is_member(self) -> bool:
        return W0 in self.conversation.coordinator.group.members


def test_the_time_counts_from_the_oldest_revocation_that_is_not_acknowledged() -> None:
    play = Revocations()
    play.revoke(FIRST)
    play.wait(2_000)
    play.revoke(SECOND)
    play.wait(500)
    play.stop(FIRST)
    play.wait(TIMEOUT_MS - 501)
    assert play.is_member, "2,999 ms after the second revocation, 4,999 ms after the first one"
    play.wait(1)
    assert not play.is_member


def test_a_later_revocation_gives_no_more_time_for_an_earlier_one() -> None:
    play = Revocations()
    play.revoke(FIRST)
    play.wait(2_000)
    play.revoke(SECOND)
    play.stop(SECOND)
    play.wait(999)
    assert play.is_member
    play.wait(1)
    assert not play.is_member


def test_the_time_begins_again_after_a_reload() -> None:
    play = Revocations()
    play.revoke(FIRST)
    play.wait(2_000)
    play.conversation.coordinator.load(play.conversation.now_ms)
    play.wait(TIMEOUT_MS - 1)
    assert play.is_member
    play.wait(1)
    assert not play.is_member


def test_a_member_that_is_too_slow_learns_why_it_was_removed_and_what_to_set() -> None:
    play = Revocations()
    play.revoke(FIRST)
    play.wait(TIMEOUT_MS)
    refused = play.conversation.beat("w0", 1, owned=play.owned)
    assert refused.error is ConnectErrorCode.UNKNOWN_MEMBER_ID
    assert f"it has not given back {FIRST} (one of 1 jobs) within 3000 ms" in (refused.message or "")
    assert "rebalance.timeout.ms must be longer" in (refused.message or "")
    (departed,) = play.conversation.coordinator.group.departed.values()
    assert departed.reason in (refused.message or ""), "Describe has it too"
