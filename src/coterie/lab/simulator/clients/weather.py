"""The faults of clients, and the operators' requests to their group; at the end all of them stop."""

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
from coterie.lab.simulator.actor import youngest
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
from coterie.lab.simulator.faults import Faults
from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.storm import Storm
from coterie.nouns.ids import Generation, InstanceId, MemberId

NAMES = ("c1", "c2", "c3", "c4")
OPERATOR = "operator"
PROTOCOLS = (("range", "sticky"), ("sticky", "range"), ("range", "sticky", "own"))
"""The protocols that clients offer. All clients offer the first two: after a load the coordinator has only the group's
last elected protocol for each member, so it would refuse a client without that protocol until all other members have
rejoined, as Kafka does."""


class ClientsWeather(Faults[Client]):
    def __init__(self, play: ClientsPlay) -> None:
        names = NAMES[: play.world.rng.randint(1, len(NAMES))]
        super().__init__(play.world, Storm(play.world, play.network, play.coordinator, (*names, OPERATOR)), names)
        self._play = play
        self._static = [name for name in names if self._rng.random() < 0.6]
        self._protocols = {name: self._rng.choice(PROTOCOLS) for name in names}
        self._copies: Iterator[int] = count(2)
        self._deserted_until_ms = 0
        self._plan(
            {
                self._pause: 4,
                self._kill: 4,
                self._stop: 4,
                self.bury: 1,
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
        for name in self._homes:
            self._world.after(self._rng.randint(0, 4_000), partial(self.start, name))
        self._next()

    def end(self) -> None:
        """Start all clients except those in ``_gone_for_good``, and crash the coordinator once more."""
        self._deserted_until_ms = 0
        for client in list(self.living.values()):
            self._resume(client)
        self.start_missing()
        self._storm.crash_coordinator()

    # -- clients ------------------------------------------------------------------------------------------------------

    def start(self, home: str) -> None:
        wait_ms = self._deserted_until_ms - self._world.now_ms
        if wait_ms > 0:
            self._world.after(wait_ms, partial(self.start, home))
        elif home not in self._gone_for_good and youngest(self.living, home) is None:
            self._start_process(home, home)

    def _start_process(self, name: str, home: str) -> None:
        instance_id = InstanceId(f"place-{home}") if home in self._static else None
        Client(self._play, self.living, name, home=home, instance_id=instance_id, protocols=self._protocols[home])

    def _come_back(self, home: str) -> None:
        self._world.after(self._rng.choice((200, 1_000, 4_000, 9_000, 20_000)), partial(self.start, home))

    def _stop(self) -> None:
        client = self._someone()
        if client is not None and not client.paused:
            client.stop()
            self._come_back(client.home)

    def _start_a_copy(self) -> None:
        """Start a second process of a static client: the newer process must fence the older one."""
        client = self._someone()
        if client is not None and client.instance_id is not None:
            self._start_process(f"{client.home}-copy{next(self._copies)}", client.home)

    def _change_protocols(self) -> None:
        self._protocols[self._rng.choice(self._homes)] = self._rng.choice(PROTOCOLS)

    def _desert(self) -> None:
        """End all clients, in some cases for so long that offsets expire."""
        self._deserted_until_ms = self._world.now_ms + self._rng.choice((10_000, 60_000))
        for name in sorted(self.living):
            self.living[name].kill(RecordKind.ALL_KILLED)
        self.start_missing()

    # -- operators ----------------------------------------------------------------------------------------------------

    def _ask(self, what: tuple[RecordValue, ...], request: Callable[[ReplyTo], Request]) -> None:
        self._world.record(RecordKind.REQUESTED, OPERATOR, *what)
        self._play.network.call(
            OPERATOR,
            lambda call: self._play.coordinator.serve(call, request),
            answered=lambda _: None,
            failed=lambda _: None,
            late_max_ms=LATE_MAX_MS,
        )

    def _remove_static(self) -> None:
        name = self._rng.choice(self._homes)
        leaving = LeavingMember(member_id=MemberId(""), instance_id=InstanceId(f"place-{name}"))
        self._ask(
            ("remove", leaving.instance_id),
            lambda reply_to: LeaveGroup(reply_to=reply_to, members=(leaving,)),
        )

    def _delete_group(self) -> None:
        self._ask(("delete group",), lambda reply_to: DeleteGroup(reply_to=reply_to))

    def _delete_offsets(self) -> None:
        partitions: tuple[TopicPartition, ...] = (self._rng.choice(PARTITIONS), OTHER_PARTITION)
        self._ask(
            ("delete offsets", partitions[0].partition),
            lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=partitions),
        )

    def _delete_topic(self) -> None:
        if self._play.coordinator.up:
            topic = self._rng.choice((READ_TOPIC, OTHER_TOPIC))
            self._world.record(RecordKind.TOPIC_DELETED, topic)
            self._play.coordinator.feed(TopicDeleted(topic=topic))

    def _commit_from_outside(self) -> None:
        """Commit an offset without membership, as a tool that resets offsets or a consumer with manual assignment."""
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
        self._ask(("fetch offsets",), lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=None))
