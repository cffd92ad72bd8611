from collections.abc import Callable

import pytest

from tests.broker.conftest import raw_client
from tests.kafka.faults.data import epochs, produce
from tests.kafka.faults.row import Scene


@pytest.mark.parametrize(
    "kind", [pytest.param("embedded", marks=pytest.mark.processes), pytest.param("kafka", marks=pytest.mark.kafka)]
)
@pytest.mark.parametrize(("epoch", "expected"), [(0, (0, 1)), (1, (-1, -1)), (-1, (-1, -1)), (-5, (-5, 0))])
def test_the_end_of_an_epoch_is_the_offset_after_its_last_record(
    kind: str, epoch: int, expected: tuple[int, int], ready_ports: Callable[[str], int]
) -> None:
    with raw_client(ready_ports(kind)) as client:
        scene = Scene(client)
        topic = scene.topic()
        scene.ask("Produce", 12, produce(topic))
        (found,) = scene.ask("OffsetForLeaderEpoch", 4, epochs(topic, leader_epoch=epoch)).topics[0].partitions
    assert (found.leader_epoch, found.end_offset) == expected
