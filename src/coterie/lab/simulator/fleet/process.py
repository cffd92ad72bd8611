"""The state of one process of a worker in a classic group that the invariant checks read."""

from typing import Self

from coterie.engine.lease import LeaseDurations
from coterie.herder.state import Herder
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.settings import SESSION_TIMEOUT_MS, WorkerSetup
from coterie.lab.simulator.workers.worker import SimWorker
from coterie.member.classic.state import Member
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import AssignmentsRequested, ClassicMembershipHandover
from coterie.wire.connect import ConnectProtocol


class ClassicWorkerProcess(SimWorker):
    """One process of a worker in a classic group, as far as the invariant checks read it. Its subclass
    `ClassicGroupWorker` writes these fields."""

    def __init__(
        self,
        cluster: SharedByWorkers,
        live_processes: dict[str, Self],
        service: str,
        herder_state: Herder,
        setup: WorkerSetup,
        member: Member,
        handover: ClassicMembershipHandover | None,
    ) -> None:
        """``handover`` is the membership that the process continues, as the next process after a relaunch; otherwise
        None."""
        super().__init__(cluster, live_processes, service, herder_state, setup)
        self.member = member
        self.last_answered_sent_at_ms = self.world.now_ms
        """When the process sent the newest request whose response showed that the coordinator had the process as a
        member; at first, when the process started."""
        self.assigned_jobs = handover.jobs if handover is not None else NO_JOBS
        self.received_generation: GenerationId | None = handover.generation if handover is not None else None
        """The last generation whose assignment the process has received; None if it has received none since it last
        lost its membership."""
        self.protocol = ConnectProtocol.from_setting(handover.protocol) if handover is not None else None
        """The group's protocol in the last generation whose assignment the process has received, also before a loss of
        the membership; None before the first."""
        self.elected_protocol = self.protocol.wire_name if self.protocol is not None else ""
        """The wire name of the group's protocol by the response to the last JoinGroup, also if the process has not
        received the assignment of that round; empty before the first."""
        self.requested_round: AssignmentsRequested | None = None
        """The last round that the member has requested from the herder, because this worker is the leader; None before
        the first."""

    @property
    def member_id(self) -> MemberId:
        return self.member.member_id

    @property
    def session_ends_ms(self) -> int:
        return self.last_answered_sent_at_ms + SESSION_TIMEOUT_MS

    @property
    def leadership_number(self) -> int:
        return self.herder.place.epoch

    @property
    def lease_ends_ms(self) -> int:
        return self.last_answered_sent_at_ms + LeaseDurations(SESSION_TIMEOUT_MS).duration_ms
