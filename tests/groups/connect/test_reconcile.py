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


@given(
    assigned=job_sets,
    pending=job_sets,
    target=job_sets,
    owned=st.none() | job_sets,
    free=job_sets,
    of_others=job_sets,
    has_received_responses=st.booleans(),
)
def test_a_step_revokes_or_assigns_and_never_both(
    assigned: Jobs,
    pending: Jobs,
    target: Jobs,
    owned: Jobs | None,
    free: Jobs,
    of_others: Jobs,
    has_received_responses: bool,
) -> None:
    before = current_with(assigned, pending - assigned)
    owned = None if owned is None else owned & before.held_jobs
    free -= before.held_jobs
    after = reconcile(
        before,
        target=target,
        assignment_epoch=GroupEpoch(2),
        request_epoch=MemberEpoch(1),
        owned=owned,
        is_free=lambda job: job in free,
        is_in_a_target=(target | of_others).__contains__,
        has_received_responses=has_received_responses,
    )
    reported = before.assigned if owned is None else owned
    known = before.pending if has_received_responses else Jobs()
    """The revoked jobs whose revocation the member has certainly received."""
    gives = bool(reported - after.assigned - known)
    gets = bool(after.assigned - reported)
    assert not (after.pending and gives and gets)
    if after.pending & (target | of_others):
        assert not gets, "the members that wait for these jobs get them first"
    assert not after.assigned & after.pending
    assert after.assigned <= before.assigned | free
    assert after.assigned <= target
    assert after.pending <= before.held_jobs
    if owned is None:
        assert before.pending <= after.pending, "only a list of owned jobs acknowledges"
    else:
        assert after.pending <= owned
    assert (after.member_epoch == 2) is (not after.pending)
    epochs = [job for jobs in after.job_epochs.values() for job in jobs]
    assert sorted(epochs) == sorted(after.held_jobs)
    kept = after.held_jobs & before.held_jobs
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
            is_in_a_target=target.__contains__,
            has_received_responses=True,
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
        is_in_a_target=lambda _: True,
        has_received_responses=True,
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
        is_in_a_target=lambda _: True,
        has_received_responses=True,
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
        is_in_a_target=lambda _: True,
        has_received_responses=True,
    )
    assert (after.member_epoch, after.previous_epoch) == (5, 0)


def step_of_a_member_that_stops_a_job(
    *, is_in_a_target: bool = False, has_received_responses: bool = True
) -> CurrentAssignment:
    """The next step of a member that still stops one job, while another job of its target is free."""
    stops, free = Jobs.of([ALL[0]]), Jobs.of([ALL[1]])
    return reconcile(
        current_with(Jobs(), stops),
        target=free,
        assignment_epoch=GroupEpoch(2),
        request_epoch=MemberEpoch(1),
        owned=None if has_received_responses else stops,
        is_free=free.__contains__,
        is_in_a_target=lambda job: job in free or is_in_a_target,
        has_received_responses=has_received_responses,
    )


def test_a_stopping_job_that_no_member_waits_for_delays_no_other_job() -> None:
    """The connector of the job was deleted, and its plug-in may hang in stop. The member's epoch still waits."""
    after = step_of_a_member_that_stops_a_job()
    assert (after.assigned, after.pending) == (Jobs.of([ALL[1]]), Jobs.of([ALL[0]]))
    assert (after.member_epoch, after.job_epochs[GroupEpoch(2)]) == (1, after.assigned)


def test_a_stopping_job_that_another_member_waits_for_delays_new_jobs() -> None:
    after = step_of_a_member_that_stops_a_job(is_in_a_target=True)
    assert (after.assigned, after.pending) == (Jobs(), Jobs.of([ALL[0]]))


def test_a_member_that_may_not_know_of_a_revocation_gets_no_new_jobs() -> None:
    after = step_of_a_member_that_stops_a_job(has_received_responses=False)
    assert (after.assigned, after.pending) == (Jobs(), Jobs.of([ALL[0]]))
