"""The broker of the simulation: the real `groups` machine with the real outbox, and a disk that may forget its tail."""

from collections.abc import Callable

from coterie.engine.output import Outbox
from coterie.groups import messages as groups
from coterie.groups.classic import step
from coterie.groups.records import decode_value, encode_value
from coterie.groups.state import Group, Limits, Phase, apply, check_whole
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.watch import Watch
from coterie.lab.simulator.world import Alarms, World
from coterie.member import messages as member
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode


class Disk:
    """Takes what gathered while the last write was under way, acknowledges late, loses what it has not acknowledged."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.lines: list[bytes] = []
        self.slow = False
        self._writing: list[bytes] = []
        self._waiting: list[bytes] = []
        self._life = 0

    def append(self, lines: list[bytes], acknowledged: Callable[[int], None]) -> None:
        self._waiting += lines
        if not self._writing:
            self._write(acknowledged)

    def crash(self) -> None:
        """Of what was being written any first part may have come to rest; nobody was told."""
        self.lines += self._writing[: self._world.rng.randint(0, len(self._writing))]
        self._writing, self._waiting = [], []
        self._life += 1

    def _write(self, acknowledged: Callable[[int], None]) -> None:
        self._writing, self._waiting = self._waiting, []
        life, ms = self._life, self._world.rng.randint(200, 3_000) if self.slow else self._world.rng.randint(1, 20)

        def written() -> None:
            if life != self._life:
                return
            done = len(self._writing)
            self.lines += self._writing
            self._writing = []
            acknowledged(done)
            if self._waiting:
                self._write(acknowledged)

        self._world.after(ms, written)


class SimCoordinator:
    """One life after the other of the same group's coordinator."""

    def __init__(self, world: World, watch: Watch, *, group_id: GroupId, limits: Limits) -> None:
        self._world = world
        self._watch = watch
        self._group_id = group_id
        self._limits = limits
        self.disk = Disk(world)
        self._fresh = 0
        self._asked = 0
        self.up = False
        self.start()

    # -- lives ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay what the disk holds, then answer again."""
        self._calls: dict[groups.ReplyTo, tuple[Call, groups.Request]] = {}
        self._outbox = Outbox[groups.Effect]()
        self._alarms = Alarms[groups.TimerKey](self._world, lambda key: self._feed(groups.TimerFired(key=key)))
        self.group = Group(self._group_id, self._limits)
        for line in self.disk.lines:
            apply(self.group, decode_value(line))
        self.up = True
        self._watch.on_loaded(self.group, self.disk.lines)
        self._world.say(f"coordinator is up with {len(self.disk.lines)} lines, generation {self.group.generation}")
        self._feed(groups.GroupLoaded())

    def crash(self) -> None:
        self._watch.on_crash(self.group)
        self._world.say(f"coordinator crashes in {self.group.phase}, generation {self.group.generation}")
        self.up = False
        self._alarms.off()
        self.disk.crash()
        for call, _ in self._calls.values():
            call.fail("the connection was reset", within_ms=200)

    # -- questions --------------------------------------------------------------------------------------------------

    def serve(self, call: Call, request: member.Request) -> None:
        if not self.up:
            call.fail("connection refused", within_ms=20)
            return
        self._asked += 1
        reply_to = groups.ReplyTo(self._asked)
        event = self._event(reply_to, call.worker, request)
        self._calls[reply_to] = (call, event)
        self._feed(event)

    def _event(self, reply_to: groups.ReplyTo, worker: str, request: member.Request) -> groups.Request:
        match request:
            case member.HeartbeatRequest():
                return groups.Heartbeat(reply_to=reply_to, member_id=request.member_id, generation=request.generation)
            case member.JoinRequest():
                self._fresh += 1
                return groups.JoinGroup(
                    reply_to=reply_to,
                    member_id=request.member_id,
                    fresh_member_id=MemberId(f"{worker}-{self._world.rng.getrandbits(16):04x}{self._fresh}"),
                    requires_known_member_id=True,
                    client_id=worker,
                    client_host="/127.0.0.1",
                    session_timeout_ms=request.session_timeout_ms,
                    rebalance_timeout_ms=request.rebalance_timeout_ms,
                    protocol_type=request.protocol_type,
                    protocols=tuple(
                        groups.MemberProtocol(name=name, metadata=metadata) for name, metadata in request.protocols
                    ),
                )
            case member.SyncRequest():
                return groups.SyncGroup(
                    reply_to=reply_to,
                    member_id=request.member_id,
                    generation=request.generation,
                    protocol_type=request.protocol_type,
                    protocol=request.protocol,
                    assignments=request.assignments,
                )
            case member.LeaveRequest():
                return groups.LeaveGroup(
                    reply_to=reply_to, members=(groups.LeavingMember(member_id=request.member_id),)
                )

    # -- the loop: step, append, release, perform -------------------------------------------------------------------

    def _feed(self, event: groups.Event) -> None:
        if isinstance(event, groups.SyncGroup):
            self._watch.on_sync(event, self.group)
        before, known = self.group.phase, set(self.group.members)
        with self._watch.machine_check("groups"):
            output = step(self.group, event, now_ms=self._world.now_ms)
            check_whole(self.group)
        if isinstance(event, groups.TimerFired):
            self._world.say(f"coordinator: {event.key}")
            self._watch.on_expired(known - set(self.group.members), event.key)
        written = [record for record in output.records if isinstance(record, groups.GenerationWritten)]
        assert len(written) == len(output.records), "workers commit no offsets, and their group is not for deletion"
        for record in written:
            self._watch.on_written(record, self.group)
        if self.group.phase is not before:
            self._world.say(f"coordinator: {before} -> {self.group.phase}, generation {self.group.generation}")
        self._outbox.put(output)
        if output.records:
            self.disk.append([encode_value(record) for record in written], self._on_durable)
        self._release()

    def _on_durable(self, lines: int) -> None:
        self._outbox.durable(lines)
        self._release()

    def _release(self) -> None:
        for effect in self._outbox.release():
            match effect:
                case groups.Reply(to=to, response=response):
                    call, request = self._calls.pop(to)
                    self._watch.on_reply(request, response, self.disk.lines)
                    if not isinstance(request, groups.Heartbeat) or response.error is not ErrorCode.none:
                        self._world.say(f"coordinator to {call.worker}: {type(request).__name__} {response.error.name}")
                    call.answer(_heard(request, response))
                case groups.SetTimer(key=key, at_ms=at_ms):
                    self._alarms.set(key, at_ms)
                case groups.CancelTimer(key=key):
                    self._alarms.cancel(key)

    @property
    def is_stable(self) -> bool:
        return self.up and self.group.phase is Phase.STABLE


def _heard(request: groups.Request, response: groups.Response) -> member.Response:
    """What the broker and the client's wire make of an answer."""
    match response:
        case groups.HeartbeatResponse():
            return member.HeartbeatResponse(error=response.error)
        case groups.JoinGroupResponse():
            return member.JoinResponse(
                error=response.error,
                generation=response.generation,
                protocol=response.protocol or "",
                leader=response.leader,
                member_id=response.member_id,
                members={one.member_id: one.metadata for one in response.members} or None,
            )
        case groups.SyncGroupResponse():
            return member.SyncResponse(error=response.error, assignment=response.assignment)
        case groups.LeaveGroupResponse():
            error = response.members[0][1] if response.members else response.error
            return member.LeaveResponse(error=error)
        case _:
            raise AssertionError(f"no worker asked for {response}")
