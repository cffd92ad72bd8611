"""A new cluster and its input for each test; all their processes end with the test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.nouns.membership import GroupProtocolName
from tests.processes.cluster import Cluster, Feed


@pytest.fixture
def group_protocol() -> GroupProtocolName:
    """The group protocol of tests that say no other."""
    return GroupProtocolName.CLASSIC


@pytest.fixture
def cluster(tmp_path: Path, group_protocol: GroupProtocolName) -> Iterator[Cluster]:
    cluster = Cluster(folder=tmp_path, group_protocol=group_protocol)
    try:
        yield cluster
    finally:
        cluster.end()
        # Shown by pytest when the test fails.
        for process in cluster.processes:
            sys.stdout.write(process.tail() + "\n")


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    feed = Feed(tmp_path / "in")
    feed.start()
    yield feed
    feed.stop()
