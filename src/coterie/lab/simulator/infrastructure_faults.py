"""The faults of links, and of the coordinator and its disk. Each fault ends after some time."""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from coterie.lab.simulator.network import Direction, Network
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import FaultyDisk, World


class FaultyServer(Protocol):
    """A coordinator or a broker that crashes and starts again, and whose disk is slow at times."""

    is_up: bool
    """Whether the server runs."""

    @property
    def disk(self) -> FaultyDisk:
        """The server's disk."""
        ...

    def crash(self) -> None:
        """End the server without an orderly stop."""
        ...

    def start(self) -> None:
        """Start the server again, with what is durable."""
        ...


class FaultEnds:
    """Ends the faults of a simulation that last some time. If several faults with the same key overlap, they all end at
    the last one of their ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._end_ms_by_key: dict[Hashable, int] = {}

    def end_after(self, lasts_ms: int, key: Hashable, end_fault: Callable[[], None]) -> None:
        """Call ``end_fault`` after ``lasts_ms``, unless another fault with ``key`` lasts longer. The key names the kind
        of the fault and the object that has the fault, such as a link."""
        end_ms = self._world.now_ms + lasts_ms
        self._end_ms_by_key[key] = max(end_ms, self._end_ms_by_key.get(key, 0))

        def end_if_last() -> None:
            if self._end_ms_by_key.get(key) == end_ms:
                del self._end_ms_by_key[key]
                end_fault()

        self._world.call_after(lasts_ms, end_if_last)

    def clear(self) -> None:
        """Called when all faults have been ended together: their own ends have no effect any more."""
        self._end_ms_by_key.clear()


class InfrastructureFaults:
    """Injects the faults of links, of the coordinator and of its disk, in every simulation."""

    def __init__(self, world: World, network: Network, coordinator: FaultyServer, link_names: Sequence[str]) -> None:
        """``coordinator`` is the coordinator of the group; in the simulation of producers, the broker. ``link_names``
        are the names of the links that may be faulty."""
        self._world = world
        self._rng = world.rng
        self._network = network
        self._coordinator = coordinator
        self._link_names = link_names
        self.ends = FaultEnds(world)
        """The ends of all faults of the simulation."""

    def weight_by_fault(self) -> dict[Callable[[], None], int]:
        """The functions that begin one fault each, with their weights. The weight of a fault is its frequency in
        comparison with the other faults."""
        return {
            self.crash_and_restart_coordinator: 3,
            self._cut_random_link: 3,
            self._delay_messages: 3,
            self._lose_messages: 3,
            self._break_connections: 2,
            self._slow_disk: 2,
        }

    def heal(self) -> None:
        """End all faults of links and of the disk. The planned ends of all faults have no effect any more. A crashed
        coordinator is not started by this call: it starts at the time that was planned when it crashed."""
        self.ends.clear()
        self._network.heal()
        self._coordinator.disk.is_slow = False

    def crash_and_restart_coordinator(self) -> None:
        """Crash the coordinator if it runs; it starts again 50 ms to 9 s later."""
        if self._coordinator.is_up:
            self._coordinator.crash()
            self._world.call_after(self._rng.choice((50, 500, 2_000, 9_000)), self._coordinator.start)

    def _cut_random_link(self) -> None:
        """Cut a random link for 0.5 to 20 s."""
        name = self._rng.choice(self._link_names)
        self.cut_link(name, self._rng.choice((500, 3_000, 7_000, 20_000)))

    def cut_link(self, name: str, duration_ms: int) -> None:
        """Cut the link ``name`` for ``duration_ms``, or longer if an earlier cut of this link lasts longer: all its
        messages are lost."""
        link = self._network.find_or_add_link_faults(name)
        link.is_cut = True
        self._world.add_record(RecordKind.CUT, name)

        def connect_link() -> None:
            self._world.add_record(RecordKind.CONNECTED, name)
            link.is_cut = False

        self.ends.end_after(duration_ms, ("cut", name), connect_link)

    def _delay_messages(self) -> None:
        """Delay the messages of one direction of a random link: those that are sent in the next 0.3 to 10 s arrive only
        after that time."""
        name, direction = self._rng.choice(self._link_names), self._rng.choice(list(Direction))
        ms = self._rng.choice((300, 2_000, 5_000, 10_000))
        self._network.find_or_add_link_faults(name).delayed_until_ms[direction] = self._world.now_ms + ms
        self._world.add_record(RecordKind.CLOGGED, name, direction, ms)

    def _lose_messages(self) -> None:
        """Let a random link lose 5, 20 or 50 % of its messages, for 1 to 20 s."""
        name = self._rng.choice(self._link_names)
        link = self._network.find_or_add_link_faults(name)
        link.loss_probability = self._rng.choice((0.05, 0.2, 0.5))
        self._world.add_record(RecordKind.LOSSY, name, f"{link.loss_probability:.0%}")

        def end_losses() -> None:
            link.loss_probability = 0.0

        self.ends.end_after(self._rng.randint(1_000, 20_000), ("losses", name), end_losses)

    def _break_connections(self) -> None:
        """For 1 to 20 s, let the connection of 30 % of the requests on a random link break."""
        name = self._rng.choice(self._link_names)
        link = self._network.find_or_add_link_faults(name)
        link.break_probability = 0.3

        def end_breaks() -> None:
            link.break_probability = 0.0

        self.ends.end_after(self._rng.randint(1_000, 20_000), ("breaks", name), end_breaks)

    def _slow_disk(self) -> None:
        """Make the disk slow, for 1 to 10 s."""
        disk = self._coordinator.disk
        disk.is_slow = True

        def end_slowness() -> None:
            disk.is_slow = False

        self.ends.end_after(self._rng.randint(1_000, 10_000), "slow disk", end_slowness)
