"""The state of one worker process that the invariant checks read: its two machines, its tasks and its assignments."""

from typing import Self

from coterie.herder.seams import TaskStart
from coterie.herder.state import Herder
from coterie.lab.simulator.actor import Actor
from coterie.lab.simulator.world import World
from coterie.member.classic.state import Member
from coterie.nouns.ids import Generation, InstanceId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Jobs
from coterie.nouns.membership import AssignmentWanted, PlaceHandover
from coterie.wire.connect import ConnectProtocol


class Process(Actor):
    """One process of a worker. `worker.WorkerProcess` writes these fields."""

    def __init__(
        self,
        world: World,
        living: dict[str, Self],
        home: str,
        herder: Herder,
        member: Member,
        place: PlaceHandover | None,
    ) -> None:
        """``place`` is the membership that the relaunched process had, if this process continues it; else None."""
        name = home
        while name in living:
            name += "'"
        super().__init__(world, name, home, living)
        self.herder = herder
        self.member = member
        self.active: dict[ConnectorTaskId, TaskStart] = {}
        """The running tasks: from the start order until the query has died or the stop has returned."""
        self.ending = False
        """The process was ordered to end or to relaunch, or the group has refused its membership."""
        self.drains = False
        """The process was ordered to release its jobs and then to leave permanently."""
        self.resumed_at_ms = 0
        self.answered_sent_ms = world.now_ms
        """Time at which the last request was sent to which the coordinator responded as to a member."""
        self.given = place.jobs if place is not None else NO_JOBS
        """The sum of the assignments received since the membership was last lost."""
        self.received: Generation | None = place.generation if place is not None else None
        """The last generation whose assignment was received, since the membership was last lost."""
        self.protocol = ConnectProtocol.named(place.protocol) if place is not None else None
        """The group's protocol in the generation ``received``."""
        self.voted = self.protocol.wire_name if self.protocol is not None else ""
        """The group's protocol by the last join, whether the assignment of that round was received or not."""
        self.wanted: AssignmentWanted | None = None
        """The last round that the process, as the leader, had to compute."""

    @property
    def instance_id(self) -> InstanceId | None:
        return self.member.settings.instance_id

    @property
    def claims(self) -> Jobs | None:
        return self.member.settings.claims
