"""The faults of the simulator that overlap, and the orders that a worker refuses."""

from types import SimpleNamespace
from typing import Any

import pytest

from coterie.herder.requests.orders import DrainWorker
from coterie.herder.requests.refusals import SuccessWithoutContent, not_found_refusal
from coterie.lab.simulator.infrastructure_faults import InfrastructureFaults
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.workers.operators import Operators
from coterie.lab.simulator.world import FaultyDisk, World


class Server:
    """A coordinator without a function, with a disk."""

    def __init__(self) -> None:
        self.is_up = True
        self.disk = FaultyDisk()

    def crash(self) -> None: ...

    def start(self) -> None: ...


class LinkFaults:
    """The faults of the link "w1" in a world of their own."""

    def __init__(self) -> None:
        self.world = World(1)
        self.network = Network(self.world)
        self.faults = InfrastructureFaults(self.world, self.network, Server(), ["w1"])

    def is_cut_at(self, now_ms: int) -> bool:
        self.world.run_until(now_ms)
        return self.network.find_or_add_link_faults("w1").is_cut


@pytest.mark.parametrize(("first_ms", "second_ms", "end_ms"), [(500, 20_000, 20_400), (20_000, 500, 20_000)])
def test_a_link_is_connected_when_the_last_of_its_cuts_ends(first_ms: int, second_ms: int, end_ms: int) -> None:
    link = LinkFaults()
    link.faults.cut_link("w1", first_ms)
    link.world.run_until(400)
    link.faults.cut_link("w1", second_ms)
    assert link.is_cut_at(end_ms - 1)
    assert not link.is_cut_at(end_ms)


def test_after_all_faults_have_ended_a_new_cut_ends_at_its_own_time() -> None:
    link = LinkFaults()
    link.faults.cut_link("w1", 20_000)
    link.faults.heal()
    link.faults.cut_link("w1", 500)
    assert link.is_cut_at(499)
    assert not link.is_cut_at(500)
    assert not link.is_cut_at(20_000)


def test_a_worker_that_drains_and_refuses_a_second_drain_still_drains() -> None:
    answers: list[Any] = [SuccessWithoutContent(), not_found_refusal("the worker is leaving")]
    process: Any = SimpleNamespace(
        name="w1",
        service="w1",
        is_draining=False,
        call_now_or_on_resume=lambda callback: callback(),
        rest=SimpleNamespace(send_to_herder=lambda order, on_answer: on_answer(answers.pop(0))),
    )
    cluster: Any = SimpleNamespace(world=World(1))
    operators = Operators(cluster, {})
    operators._send_order_and_store_if_accepted(process, "drain", DrainWorker(worker="w1"))
    operators._send_order_and_store_if_accepted(process, "drain", DrainWorker(worker="w1"))
    assert not answers
    assert process.is_draining
