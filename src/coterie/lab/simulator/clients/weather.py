"""What happens to clients, and what operators do to their group; at the end all of it stops."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from coterie.groups.messages import LeaveGroup, LeavingMember, ReplyTo, Request
from coterie.groups.offset_messages import (
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
    Play,
)
from coterie.lab.simulator.storm import Storm
from coterie.nouns.ids import Generation, InstanceId, MemberId

NAMES = ("c1", "c2", "c3", "c4")
OPERATOR = "operator"
PROTOCOLS = (("range", "sticky"), ("sticky", "range"), ("range", "sticky", "own"))
"""What clients offer. All have the first two: after a load the coordinator knows of each member only what the group
spoke, so whoever offers nothing of that would be refused until all others have joined once more. As in Kafka."""


class ClientsWeather:
    def __init__(self, play: Play) -> None:
        self._play = play
        self._world = play.world
        self._rng = play.world.rng
        self._names = NAMES[: self._rng.randint(1, len(NAMES))]
        self._static = [name for name in self._names if self._rng.random() < 0.6]
        self._protocols = {name: self._rng.choice(PROTOCOLS) for name in self._names}
        self._gone_for_good: set[str] = set()
        self._copies: Iterator[int] = count(2)
        self._over = False
        self._deserted_until_ms = 0
        self._storm = Storm(play.world, play.network, play.coordinator, (*self._names, OPERATOR))
        faults: dict[Callable[[], None], int] = self._storm.faults() | {
            self._pause: 4,
            self._kill: 4,
            self._stop: 4,
            self._bury: 1,
            self._start_a_copy: 2,
            self._change_protocols: 1,
            self._desert: 1,
            self._remove_static: 1,
            self._delete_group: 1,
            self._delete_offsets: 1,
            self._delete_topic: 1,
            self._commit_from_outside: 2,
            self._fetch_all: 1,
        }
        self._faults = [fault for fault, weight in faults.items() for _ in range(weight)]
        # Some seeds are wild, some are nearly calm, so that one fault is also seen alone.
        self._pause_between_ms = self._rng.choice((1_500, 4_000, 10_000))

    def begin(self) -> None:
        for name in self._names:
            self._world.after(self._rng.randint(0, 4_000), partial(self._start, name))
        self._next()

    def end(self) -> None:
        """The faults stop, whoever was to come back is back, and the coordinator dies once more."""
        self._world.say("the faults stop")
        self._over = True
        self._deserted_until_ms = 0
        self._storm.heal()
        for client in list(self._play.clients.values()):
            self._resume(client)
        self.come_back()
        self._storm.crash_coordinator()

    def come_back(self) -> None:
        """Whoever is missing starts again: a client may have been fenced by what a dead one had sent before."""
        for name in self._names:
            self._start(name)

    def _next(self) -> None:
        self._world.after(1 + int(self._rng.expovariate(1 / self._pause_between_ms)), self._strike)

    def _strike(self) -> None:
        if not self._over:
            self._rng.choice(self._faults)()
            self._next()

    # -- clients ------------------------------------------------------------------------------------------------------

    def _someone(self) -> Client | None:
        alive = sorted(self._play.clients)
        return self._play.clients[self._rng.choice(alive)] if alive else None

    def _start(self, name: str) -> None:
        wait_ms = self._deserted_until_ms - self._world.now_ms
        if wait_ms > 0:
            self._world.after(wait_ms, partial(self._start, name))
        elif name not in self._gone_for_good and not any(client.host == name for client in self._play.clients.values()):
            self._start_process(name, name)

    def _start_process(self, name: str, host: str) -> None:
        instance_id = InstanceId(f"place-{host}") if host in self._static else None
        Client(self._play, name, host=host, instance_id=instance_id, protocols=self._protocols[host])

    def _come_back(self, host: str) -> None:
        self._world.after(self._rng.choice((200, 1_000, 4_000, 9_000, 20_000)), partial(self._start, host))

    def _pause(self) -> None:
        client = self._someone()
        if client is not None and not client.paused:
            client.pause()
            self._world.after(self._rng.choice((300, 2_000, 5_000, 8_000, 20_000)), partial(self._resume, client))

    def _resume(self, client: Client) -> None:
        if client.alive and client.paused:
            client.resume()

    def _kill(self) -> None:
        client = self._someone()
        if client is not None:
            client.kill("is killed")
            self._come_back(client.host)

    def _stop(self) -> None:
        client = self._someone()
        if client is not None and not client.paused:
            client.stop()
            self._come_back(client.host)

    def _bury(self) -> None:
        client = self._someone()
        if client is not None and len(self._names) - len(self._gone_for_good) > 1:
            self._gone_for_good.add(client.host)
            client.kill("dies for good")

    def _start_a_copy(self) -> None:
        """Somebody starts a process that runs already: with an instance id, the newer one is to win."""
        client = self._someone()
        if client is not None and client.instance_id is not None:
            self._start_process(f"{client.host}-copy{next(self._copies)}", client.host)

    def _change_protocols(self) -> None:
        self._protocols[self._rng.choice(self._names)] = self._rng.choice(PROTOCOLS)

    def _desert(self) -> None:
        """Nobody is there for so long that offsets grow too old."""
        self._deserted_until_ms = self._world.now_ms + self._rng.choice((10_000, 60_000))
        for name in sorted(self._play.clients):
            self._play.clients[name].kill("is killed with all others")
        for name in self._names:
            self._start(name)

    # -- operators ----------------------------------------------------------------------------------------------------

    def _ask(self, what: str, request: Callable[[ReplyTo], Request]) -> None:
        self._world.say(f"{OPERATOR} {what}")
        self._play.network.call(
            OPERATOR,
            lambda call: self._play.coordinator.serve(call, request),
            answered=lambda _: None,
            failed=lambda _: None,
            late_max_ms=LATE_MAX_MS,
        )

    def _remove_static(self) -> None:
        name = self._rng.choice(self._names)
        leaving = LeavingMember(member_id=MemberId(""), instance_id=InstanceId(f"place-{name}"))
        self._ask(
            f"removes the member at {leaving.instance_id}",
            lambda reply_to: LeaveGroup(reply_to=reply_to, members=(leaving,)),
        )

    def _delete_group(self) -> None:
        self._ask("deletes the group", lambda reply_to: DeleteGroup(reply_to=reply_to))

    def _delete_offsets(self) -> None:
        partitions: tuple[TopicPartition, ...] = (self._rng.choice(PARTITIONS), OTHER_PARTITION)
        self._ask("deletes offsets", lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=partitions))

    def _delete_topic(self) -> None:
        if self._play.coordinator.up:
            topic = self._rng.choice((READ_TOPIC, OTHER_TOPIC))
            self._world.say(f"topic {topic} is deleted")
            self._play.coordinator.feed(TopicDeleted(topic=topic))

    def _commit_from_outside(self) -> None:
        """As a tool that resets offsets does, or a consumer that assigns its partitions itself."""
        partition = self._rng.choice((*PARTITIONS, OTHER_PARTITION))
        offset = self._play.next_offset(partition)
        retention_ms = self._rng.choice((None, OWN_RETENTION_MS))
        self._ask(
            f"commits an offset of {partition}",
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
        self._ask("looks at all offsets", lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=None))
