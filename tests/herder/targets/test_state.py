"""A worker's state in a connect group after a relaunch."""

from coterie.herder.targets.state import HerderConnectGroupState, NotReportingJobs
from tests.herder.targets.connect_driver import HANDOVER


def test_a_relaunched_worker_keeps_its_assignment_and_reports_nothing_yet() -> None:
    targets = HerderConnectGroupState(HANDOVER)
    assert targets.details is not None
    assert (targets.details.leader_epoch, targets.details.jobs_by_assignment_epoch) == (
        HANDOVER.leader_epoch,
        HANDOVER.jobs_by_assignment_epoch,
    )
    assert targets.jobs_report == NotReportingJobs()


def test_a_new_worker_has_no_assignment_details_and_no_description() -> None:
    targets = HerderConnectGroupState(None)
    assert (targets.details, targets.description) == (None, None)
