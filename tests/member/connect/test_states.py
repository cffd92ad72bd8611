"""docs/states.md contains every transition that the member of a connect group takes."""

from pathlib import Path

import pytest

from coterie.member.connect.messages import InstallAssignmentRequest, PrepareAssignmentRequest
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import InstallTarget, Leave, LeaveAndRejoin, SuspendMembership, TargetRequested
from coterie.nouns.target_assignments import GroupSnapshot
from tests.lab.transitions import Table, Transition, read_sections
from tests.member.connect.driving import HANDOVER, SOME, MemberDriver, accepted
from tests.member.connect.group_play import play_with_faults
from tests.member.connect.transitions import Machine, ObservedSteps

PAGE = Path(__file__).parents[3] / "docs" / "states.md"
SNAPSHOT = GroupSnapshot(
    group_epoch=GroupEpoch(7), assignor="cooperative", members=(), config_offset=ConfigOffset(4), configured=SOME
)
HEARTBEAT_ERRORS = (
    ConnectErrorCode.UNKNOWN_MEMBER_ID,
    ConnectErrorCode.FENCED_MEMBER_EPOCH,
    ConnectErrorCode.STALE_REQUEST,
    ConnectErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ConnectErrorCode.COORDINATOR_NOT_AVAILABLE,
    ConnectErrorCode.NOT_COORDINATOR,
    ConnectErrorCode.UNKNOWN_SERVER_ERROR,
    ConnectErrorCode.UNSUPPORTED_VERSION,
    ConnectErrorCode.UNSUPPORTED_ASSIGNOR,
    ConnectErrorCode.GROUP_AUTHORIZATION_FAILED,
    ConnectErrorCode.INVALID_REQUEST,
    ConnectErrorCode.FENCED_INSTANCE_ID,
    ConnectErrorCode.GROUP_MAX_SIZE_REACHED,
    ConnectErrorCode.GROUP_ID_NOT_FOUND,
)


def tour(observed: ObservedSteps) -> None:
    """Members that meet each error in each situation."""
    for error in HEARTBEAT_ERRORS:
        for is_owner in (True, False):
            worker = MemberDriver(step=observed)
            worker.join(SOME if is_owner else NO_JOBS)
            worker.refuse(error)
            worker.feed(SuspendMembership())
        for leaves in (True, False):
            worker = MemberDriver(step=observed)
            worker.join(NO_JOBS)
            worker.feed(Leave(reason="tour") if leaves else SuspendMembership())
            worker.refuse(error)
            worker.feed(Leave(reason="tour"))
    for error in (
        ConnectErrorCode.UNKNOWN_MEMBER_ID, ConnectErrorCode.FENCED_MEMBER_EPOCH, ConnectErrorCode.NOT_COORDINATOR
    ):  # fmt: skip
        worker = chosen(observed)
        worker.reply(worker.pending(PrepareAssignmentRequest), PrepareAssignmentResponse(error=error))
        worker.answer(accepted(1))
        worker = chosen(observed)
        install(worker)
        worker.reply(worker.pending(InstallAssignmentRequest), InstallAssignmentResponse(error=error))
        worker.answer(accepted(1))
    for order in (Leave(reason="tour"), SuspendMembership(), LeaveAndRejoin(reason="tour")):
        for is_owner in (True, False):
            worker = chosen(observed)
            worker.own(SOME if is_owner else NO_JOBS)
            worker.feed(order)
            worker.advance_clock(60_000)
            worker.own()
    MemberDriver(HANDOVER, step=observed).advance_clock(60_000)
    MemberDriver(step=observed).feed(Leave(reason="tour"))


def chosen(observed: ObservedSteps) -> MemberDriver:
    worker = MemberDriver(step=observed)
    worker.join()
    worker.end_hold()
    worker.answer(accepted(1, error=ConnectErrorCode.COMPUTE_ASSIGNMENT))
    return worker


def install(worker: MemberDriver) -> None:
    worker.reply(worker.pending(PrepareAssignmentRequest), PrepareAssignmentResponse(snapshot=SNAPSHOT))
    (requested,) = worker.take_events(TargetRequested)
    worker.feed(InstallTarget(token=requested.token, target=None, error="tour"))


@pytest.mark.timeout(300)
def test_the_tables_contain_every_transition_of_the_member() -> None:
    observed = ObservedSteps()
    tour(observed)
    for seed in range(40):
        play_with_faults(seed, step=observed).settle()
    sections = read_sections(PAGE.read_text())
    tables = {str(machine): Table.read(machine, sections[machine]) for machine in Machine}
    missing = sorted(str(one) for one in observed.taken if not tables[one.machine].allows(one))
    assert missing == []
    changes = {row for table in tables.values() for row in table.rows if row.state != row.next_state}
    assert len(changes & observed.taken) > len(changes) / 3, "the plays and the tour take many of the rows"


def test_a_transition_that_the_tables_lack_is_found() -> None:
    sections = read_sections(PAGE.read_text())
    table = Table.read(Machine.ENDING, sections[Machine.ENDING])
    assert not table.allows(Transition(Machine.ENDING, "HasLeft", "SetWorkerState", "None"))
    assert not table.allows(Transition(Machine.ENDING, "None", "Leave", "None"))
