"""The faults of clients, and the operators' requests to their group; at the end all faults stop."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from coterie.groups.classic.messages import LeaveGroup, LeavingMember, ReplyTo, Request
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicDeleted,
    TopicPartition,
)
from coterie.lab.simulator.clients.client import Client
from coterie.lab.simulator.clients.play import (
    LATE_MAX_MS,
    OTHER_PARTITION,
    OTHER_TOPIC,
    OWN_RETENTION_MS,
    PARTITIONS,
    READ_TOPIC,
    ClientsPlay,
)
from coterie.lab.simulator.faults import FaultInjector
from coterie.lab.simulator.infrastructure_faults import InfrastructureFaults
from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.sim_process import newest_process
from coterie.nouns.ids import Generation, InstanceId, MemberId

NAMES = ("c1", "c2", "c3", "c4")
"""The names of the clients; a seed has the first few of them."""
OPERATOR = "operator"
"""The name under which operators' requests are recorded, and the name of their link."""
PROTOCOLS = (("range", "sticky"), ("sticky", "range"), ("range", "sticky", "own"))
"""The lists of protocols that clients offer. All of them contain the first two protocols: after a load the coordinator
knows only the group's selected protocol for each member, so it would refuse a client without this protocol until all
other members have rejoined, as Kafka does."""


class ClientsFaults(FaultInjector[Client]):
    """Injects the faults of one seed, and sends its requests of operators."""

    def __init__(self, play: ClientsPlay) -> None:
        names = NAMES[: play.world.rng.randint(1, len(NAMES))]
        super().__init__(
            play.world, InfrastructureFaults(play.world, play.network, play.coordinator, (*names, OPERATOR)), names
        )
        self._play = play
        self._static = [name for name in names if self._rng.random() < 0.6]
        self._protocols = {name: self._rng.choice(PROTOCOLS) for name in names}
        self._copies: Iterator[int] = count(2)
        self._deserted_until_ms = 0
        """Until this time no client starts, because all were killed together."""
        self._plan(
            {
                self._pause: 4,
                self._kill: 4,
                self._stop: 4,
                self.kill_for_good: 1,
                self._start_a_copy: 2,
                self._change_protocols: 1,
                self._desert: 1,
                self._remove_static: 1,
                self._delete_group: 1,
                self._delete_offsets: 1,
                self._delete_topic: 1,
                self._commit_from_outside: 2,
                self._fetch_all: 1,
            },
            pauses_ms=(1_500, 4_000, 10_000),
        )

    def begin(self) -> None:
        for name in self._services:
            self._world.after(self._rng.randint(0, 4_000), partial(self.start, name))
        self._schedule_next_fault()

    def end(self) -> None:
        """Resume paused clients, start all others except those in ``_never_restarted``, and crash the coordinator once
        more."""
        self._deserted_until_ms = 0
        for client in list(self.living.values()):
            self._resume(client)
        self.start_missing()
        self._infrastructure_faults.crash_coordinator()

    # -- clients ------------------------------------------------------------------------------------------------------

    def start(self, service: str) -> None:
        wait_ms = self._deserted_until_ms - self._world.now_ms
        if wait_ms > 0:
            self._world.after(wait_ms, partial(self.start, service))
        elif service not in self._never_restarted and newest_process(self.living, service) is None:
            self._start_process(service, service)

    def _start_process(self, name: str, service: str) -> None:
        """Start the process ``name`` of ``service``."""
        instance_id = InstanceId(f"place-{service}") if service in self._static else None
        Client(
            self._play, self.living, name, service=service, instance_id=instance_id, protocols=self._protocols[service]
        )

    def _schedule_restart(self, service: str) -> None:
        self._world.after(self._rng.choice((200, 1_000, 4_000, 9_000, 20_000)), partial(self.start, service))

    def _stop(self) -> None:
        """Stop a random client cleanly; it starts again some time later."""
        client = self._random_process()
        if client is not None and not client.paused:
            client.stop()
            self._schedule_restart(client.service)

    def _start_a_copy(self) -> None:
        """Start a second process of a static client, which must fence the first one."""
        client = self._random_process()
        if client is not None and client.instance_id is not None:
            self._start_process(f"{client.service}-copy{next(self._copies)}", client.service)

    def _change_protocols(self) -> None:
        """Change the protocols that the next process of a random client offers."""
        self._protocols[self._rng.choice(self._services)] = self._rng.choice(PROTOCOLS)

    def _desert(self) -> None:
        """Kill all clients; they start again after 10 s, or after 60 s, so that offsets expire."""
        self._deserted_until_ms = self._world.now_ms + self._rng.choice((10_000, 60_000))
        for name in sorted(self.living):
            self.living[name].kill(RecordKind.ALL_KILLED)
        self.start_missing()

    # -- operators ----------------------------------------------------------------------------------------------------

    def _ask(self, what: tuple[RecordValue, ...], request: Callable[[ReplyTo], Request]) -> None:
        """Send an operator's request to the coordinator, and record ``what`` it is."""
        self._world.record(RecordKind.REQUESTED, OPERATOR, *what)
        self._play.network.call(
            OPERATOR,
            lambda call: self._play.coordinator.serve(call, request),
            answered=lambda _: None,
            failed=lambda _: None,
            late_max_ms=LATE_MAX_MS,
        )

    def _remove_static(self) -> None:
        """Remove a static member from the group by its instance id alone."""
        name = self._rng.choice(self._services)
        leaving = LeavingMember(member_id=MemberId(""), instance_id=InstanceId(f"place-{name}"))
        self._ask(
            ("remove", leaving.instance_id),
            lambda reply_to: LeaveGroup(reply_to=reply_to, members=(leaving,)),
        )

    def _delete_group(self) -> None:
        """Delete the group, which is refused while it has members."""
        self._ask(("delete group",), lambda reply_to: DeleteGroup(reply_to=reply_to))

    def _delete_offsets(self) -> None:
        """Delete the offset of a random partition that members read, and that of the other topic."""
        partitions: tuple[TopicPartition, ...] = (self._rng.choice(PARTITIONS), OTHER_PARTITION)
        self._ask(
            ("delete offsets", partitions[0].partition),
            lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=partitions),
        )

    def _delete_topic(self) -> None:
        """Report a topic as deleted to the coordinator."""
        if self._play.coordinator.up:
            topic = self._rng.choice((READ_TOPIC, OTHER_TOPIC))
            self._world.record(RecordKind.TOPIC_DELETED, topic)
            self._play.coordinator.feed(TopicDeleted(topic=topic))

    def _commit_from_outside(self) -> None:
        """Commit an offset as a client that is not a member: a tool that resets offsets, or a consumer that assigns its
        partitions itself."""
        partition = self._rng.choice((*PARTITIONS, OTHER_PARTITION))
        offset = self._play.next_offset(partition)
        retention_ms = self._rng.choice((None, OWN_RETENTION_MS))
        self._ask(
            ("commit", partition.topic, partition.partition),
            lambda reply_to: OffsetCommit(
                reply_to=reply_to,
                member_id=MemberId(""),
                instance_id=None,
                generation=Generation(-1),
                retention_ms=retention_ms,
                offsets=(offset,),
            ),
        )

    def _fetch_all(self) -> None:
        """Fetch all offsets of the group."""
        self._ask(("fetch offsets",), lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=None))
