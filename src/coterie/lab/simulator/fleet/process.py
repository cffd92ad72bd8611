"""One process of a worker, as the watch sees it: its two machines, its tasks and its assignments."""

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
    """`worker.WorkerProcess` writes what stands here."""

    def __init__(
        self,
        world: World,
        living: dict[str, Self],
        home: str,
        herder: Herder,
        member: Member,
        place: PlaceHandover | None,
    ) -> None:
        """``place`` is what the process had that this one follows without a break."""
        name = home
        while name in living:
            name += "'"
        super().__init__(world, name, home, living)
        self.herder = herder
        self.member = member
        self.active: dict[ConnectorTaskId, TaskStart] = {}
        """Tasks of which something runs: from the order to start until the query died or the stop has returned."""
        self.ending = False
        """It is to end or to begin anew, or the group will not have it."""
        self.drains = False
        """It is to go for good, when it has handed over what it has."""
        self.resumed_at_ms = 0
        self.answered_sent_ms = world.now_ms
        """When the last request was sent that the coordinator answered as one to a member."""
        self.given = place.jobs if place is not None else NO_JOBS
        """What its assignments add up to, since it was last lost to its group."""
        self.received: Generation | None = place.generation if place is not None else None
        """The last generation whose assignment it has heard of, since then."""
        self.protocol = ConnectProtocol.named(place.protocol) if place is not None else None
        """What the group spoke in it."""
        self.voted = self.protocol.wire_name if self.protocol is not None else ""
        """What the group was to speak from the last join on, whether its assignment was heard of or not."""
        self.wanted: AssignmentWanted | None = None
        """The last round that it was to deal out."""

    @property
    def instance_id(self) -> InstanceId | None:
        return self.member.settings.instance_id

    @property
    def claims(self) -> Jobs | None:
        return self.member.settings.claims
