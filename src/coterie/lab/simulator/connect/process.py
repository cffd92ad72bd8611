"""The state of one process of a worker in a connect group that the invariant checks read."""

from collections.abc import Mapping
from typing import Self

from coterie.herder.state import Herder
from coterie.lab.simulator.connect.settings import ConnectWorkerSetup
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.worker import SimWorker
from coterie.member.connect.state import InGroup, Member
from coterie.nouns.ids import GroupEpoch, MemberId
from coterie.nouns.jobs import NO_JOBS, Job
from coterie.nouns.membership import ConnectMembershipHandover


class ConnectWorkerProcess(SimWorker):
    """One process of a worker in a connect group, as far as the invariant checks read it. Its subclass
    `ConnectGroupWorker` writes these fields."""

    worker_setup: ConnectWorkerSetup

    def __init__(
        self,
        cluster: SharedByWorkers,
        live_processes: dict[str, Self],
        service: str,
        herder_state: Herder,
        setup: ConnectWorkerSetup,
        member: Member,
        handover: ConnectMembershipHandover | None,
    ) -> None:
        """``handover`` is the membership that the process continues, as the next process after a relaunch; otherwise
        None."""
        super().__init__(cluster, live_processes, service, herder_state, setup)
        self.member = member
        self.assigned_jobs = handover.jobs if handover is not None else NO_JOBS
        jobs_by_epoch = handover.jobs_by_assignment_epoch if handover is not None else {}
        self.job_epochs: Mapping[Job, GroupEpoch] = {
            job: epoch for epoch, jobs in jobs_by_epoch.items() for job in jobs
        }
        """The job epoch of each job in the last assignment that the process has received."""
        self.received_epoch = handover.member_epoch if handover is not None else 0
        """The member epoch of the last assignment that the process has received, also after a loss of the
        membership."""
        self.led_epoch: int | None = None
        """The leader epoch in the last assignment that the process has received, if the process is the leader by this
        assignment; otherwise None."""
        self.config_log_end_when_led = 0
        """The end offset of the config log when the process last learned that it is the leader."""
        self._session_ends_ms = self._lease_ends_ms = self.world.now_ms

    @property
    def member_id(self) -> MemberId:
        return self.member.settings.member_id

    @property
    def session_ends_ms(self) -> int:
        return self._session_ends_ms

    @property
    def leadership_number(self) -> int:
        place = self.member.place
        return place.leader.leader_epoch if isinstance(place, InGroup) else 0

    @property
    def lease_ends_ms(self) -> int:
        return self._lease_ends_ms
