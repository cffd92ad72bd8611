"""The brokers against which the `kafka` room is tested."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.real_kafka import NotToBeHad, RealKafka, fetch


@pytest.fixture(scope="session")
def real_kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A real Apache Kafka broker, the same for all tests of the session."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"\n{line}\n")

    folder: Path = tmp_path_factory.mktemp("real-kafka")
    try:
        kafka = RealKafka(fetch(say), folder)
        kafka.start()
    except NotToBeHad as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))
    yield kafka
    kafka.stop()
