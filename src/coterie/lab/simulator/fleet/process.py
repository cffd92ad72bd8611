"""The state of one process of a worker that the invariant checks read: its two machines, its tasks and its
assignments."""

from typing import Self

from coterie.herder.seams import TaskSpec
from coterie.herder.state import Herder
from coterie.lab.simulator.sim_process import SimProcess
from coterie.lab.simulator.world import World
from coterie.member.classic.state import Member
from coterie.nouns.ids import Generation, InstanceId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Jobs
from coterie.nouns.membership import AssignmentsRequested, PlaceHandover
from coterie.wire.connect import ConnectProtocol


class Process(SimProcess):
    """One process of a worker. Its subclass `worker.WorkerProcess` and `runtime.SimTaskRuntime` write these fields."""

    def __init__(
        self,
        world: World,
        live_processes: dict[str, Self],
        service: str,
        herder: Herder,
        member: Member,
        handover: PlaceHandover | None,
    ) -> None:
        """``handover`` is the membership that the process continues, as the next process after a relaunch; otherwise
        None."""
        name = service
        while name in live_processes:
            name += "'"
        super().__init__(world, name, service, live_processes)
        self.herder = herder
        self.member = member
        self.running_tasks: dict[ConnectorTaskId, TaskSpec] = {}
        """The running tasks: each from the order to start it until its query has died or its stop has ended."""
        self.is_ending = False
        """Whether the process was ordered to end or to relaunch, or the group has refused its membership."""
        self.is_draining = False
        """Whether the worker was ordered to drain: to release its jobs and then to leave permanently."""
        self.resumed_at_ms = 0
        """When the process last resumed after a pause; 0 if it was never paused."""
        self.last_answered_sent_at_ms = world.now_ms
        """When the newest of those requests was sent to which the coordinator has responded as to a member."""
        self.assigned_jobs = handover.jobs if handover is not None else NO_JOBS
        """The jobs that the worker owns by all assignments that it has received since it last lost its membership."""
        self.received_generation: Generation | None = handover.generation if handover is not None else None
        """The last generation whose assignment was received; None if none was since the membership was last lost."""
        self.protocol = ConnectProtocol.from_setting(handover.protocol) if handover is not None else None
        """The group's protocol in the generation ``received_generation``."""
        self.elected_protocol = self.protocol.wire_name if self.protocol is not None else ""
        """The group's protocol by the response to the last JoinGroup, also if the assignment of that round was not
        received."""
        self.requested_round: AssignmentsRequested | None = None
        """The last round that the member, as the leader, has requested from the herder."""

    @property
    def instance_id(self) -> InstanceId | None:
        """The worker's instance id; None if it is a dynamic member."""
        return self.member.settings.instance_id

    @property
    def claims(self) -> Jobs | None:
        """The jobs that the worker claims; None: it may run all jobs that no worker claims."""
        return self.member.settings.claims
