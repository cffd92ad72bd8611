"""The steps of one member towards its target."""

from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.connect.messages import CurrentAssignment
from coterie.groups.connect.reconcile import reconcile
from coterie.nouns.ids import GroupEpoch, MemberEpoch, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs

ALL = [ConnectorTaskId(ConnectorName("c"), number) for number in range(6)]
job_sets = st.sets(st.sampled_from(ALL)).map(Jobs.of)


def current_with(assigned: Jobs, pending: Jobs) -> CurrentAssignment:
    held = assigned | pending
    return CurrentAssignment(
        member_id=MemberId("w"),
        member_epoch=MemberEpoch(1),
        previous_epoch=MemberEpoch(0),
        assigned=assigned,
        pending=pending,
        job_epochs={GroupEpoch(1): held} if held else {},
    )


@given(assigned=job_sets, pending=job_sets, target=job_sets, owned=st.none() | job_sets, free=job_sets)
def test_a_step_revokes_or_assigns_and_never_both(
    assigned: Jobs, pending: Jobs, target: Jobs, owned: Jobs | None, free: Jobs
) -> None:
    before = current_with(assigned, pending - assigned)
    owned = None if owned is None else owned & before.held
    free -= before.held
    after = reconcile(
        before,
        target=target,
        assignment_epoch=GroupEpoch(2),
        request_epoch=MemberEpoch(1),
        owned=owned,
        is_free=lambda job: job in free,
    )
    reported = before.assigned if owned is None else owned
    gives = bool(reported - after.assigned)
    gets = bool(after.assigned - reported)
    assert not (after.pending and gives and gets)
    assert not after.assigned & after.pending
    assert after.assigned <= before.assigned | free
    assert after.assigned <= target
    assert after.pending <= before.held
    if owned is None:
        assert before.pending <= after.pending, "only a list of owned jobs acknowledges"
    else:
        assert after.pending <= owned
    assert (after.member_epoch == 2) is (not after.pending)
    epochs = [job for jobs in after.job_epochs.values() for job in jobs]
    assert sorted(epochs) == sorted(after.held)
    kept = after.held & before.held
    assert kept & after.job_epochs.get(GroupEpoch(1), Jobs()) == kept, "a job that stays keeps its epoch"


@given(assigned=job_sets, target=job_sets)
def test_three_steps_reach_the_target_if_all_jobs_are_free(assigned: Jobs, target: Jobs) -> None:
    current = current_with(assigned, Jobs())
    owned: Jobs | None = assigned
    for _ in range(3):
        current = reconcile(
            current,
            target=target,
            assignment_epoch=GroupEpoch(2),
            request_epoch=current.member_epoch,
            owned=owned,
            is_free=lambda _: True,
        )
        owned = current.assigned
    assert (current.assigned, current.pending, current.member_epoch) == (target, Jobs(), 2)


def test_a_revocation_is_not_taken_back_by_a_newer_target() -> None:
    job = Jobs.of([ALL[0]])
    current = current_with(Jobs(), job)
    after = reconcile(
        current,
        target=job,
        assignment_epoch=GroupEpoch(3),
        request_epoch=MemberEpoch(1),
        owned=job,
        is_free=lambda _: False,
    )
    assert (after.assigned, after.pending) == (Jobs(), job)


def test_a_job_that_is_given_back_is_assigned_again_at_once_with_a_new_job_epoch() -> None:
    """A newer target wants the revoked job on the same member again."""
    job = Jobs.of([ALL[0]])
    after = reconcile(
        current_with(Jobs(), job),
        target=job,
        assignment_epoch=GroupEpoch(3),
        request_epoch=MemberEpoch(1),
        owned=Jobs(),
        is_free=lambda _: True,
    )
    assert (after.assigned, after.pending, after.job_epochs) == (job, Jobs(), {GroupEpoch(3): job})


def test_an_accepted_previous_epoch_stays_the_previous_one() -> None:
    current = current_with(Jobs(), Jobs())
    after = reconcile(
        current,
        target=Jobs(),
        assignment_epoch=GroupEpoch(5),
        request_epoch=MemberEpoch(0),
        owned=Jobs(),
        is_free=lambda _: False,
    )
    assert (after.member_epoch, after.previous_epoch) == (5, 0)
