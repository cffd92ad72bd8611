"""Fixtures of the `kafka` room's tests, apart from the brokers."""

from collections.abc import AsyncIterator, Callable
from functools import cache

import pytest

from coterie.kafka.topics import TopicsClient
from tests.broker.conftest import raw_client
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.faults.row import Scene
from tests.kafka.real_kafka import RealKafka


@pytest.fixture(scope="session")
def ready_ports(request: pytest.FixtureRequest) -> Callable[[str], int]:
    """The port of a broker by its kind, after its coordinators have started."""

    @cache
    def port_of(kind: str) -> int:
        broker: EmbeddedBroker | RealKafka = request.getfixturevalue(
            {"embedded": "embedded_broker", "kafka": "real_kafka"}[kind]
        )
        with raw_client(broker.port) as client:
            Scene(client).wait_ready()
        return broker.port

    return port_of


@pytest.fixture
async def topics(bootstrap: str) -> AsyncIterator[TopicsClient]:
    topics = TopicsClient([bootstrap], client_id="tests")
    yield topics
    await topics.close()
