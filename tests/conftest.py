"""Fixtures for several folders: the brokers (Coterie's own as a process, and a real Apache Kafka) and fetched jars."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from coterie.nouns.text import without_lone_surrogates
from coterie.wire.connect import ConnectProtocol
from tests import jars
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.real_kafka import (
    FETCH_TIMEOUT_S,
    ProgramUnavailableError,
    RealKafka,
    fetch,
    fetch_plugins,
    fetch_streams,
    is_fetched,
)
from tests.kafka.tools import Tools

# Python's development mode is for the tests only; the processes that they start run without it.
os.environ.pop("PYTHONDEVMODE", None)
# In tests started by a script with `&` SIGINT is ignored; child processes inherit that, and some tests send SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The duration of an example depends on the load of the machine.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


TESTS = Path(__file__).parent
BROKER_FOLDERS = {"broker", "clients", "kafka"}
"""The folders of the tests that start brokers as processes, but no workers."""
GROUPS = ("workers", "kafka", "spark", "brokers", "plays")
"""The groups of tests that one process runs one after the other, in the order in which a parallel run begins them: the
longest first. Two fleets of workers at the same time would be too slow for their tests, so these are one group."""
LONG_TESTS = "tests/groups/connect/test_exploration.py"
"""The tests of no group that take longest; a parallel run begins them after the groups."""


# pytest-xdist reads the groups in the same hook, and pytest-randomly sorts in it.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Put tests into :data:`GROUPS`: those that share a Spark session, those that start workers as processes, those
    that start only brokers as processes, and those that need a real Kafka. Sort them for a parallel run."""
    _add_groups(items)
    yield
    if _is_parallel(config):
        # The last test to begin should be a short one, or all other processes wait for it.
        items.sort(key=_place_in_parallel_run)


def _add_groups(items: list[pytest.Item]) -> None:
    is_here = {"kafka": is_fetched(), "spark": not jars.lacking()}
    for item in items:
        if any(item.get_closest_marker(marker) for marker, here in is_here.items() if not here):
            # The first of these tests waits for the fetch. A session's fixture that fails by a test's time limit fails
            # all of them.
            item.add_marker(pytest.mark.timeout(2 * FETCH_TIMEOUT_S), append=False)
        processes = "brokers" if item.path.relative_to(TESTS).parts[0] in BROKER_FOLDERS else "workers"
        groups = ((processes, ("processes",)), ("spark", ("spark",)), ("kafka", ("kafka", "interop")))
        for group, markers in groups:
            if any(item.get_closest_marker(marker) for marker in markers):
                item.add_marker(pytest.mark.xdist_group(group))
                break


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if pytest-xdist does not keep groups together: if it does, a test's id contains its group."""
    if _is_parallel(session.config) and any(
        item.get_closest_marker("xdist_group") and "@" not in item.nodeid for item in session.items
    ):
        raise pytest.UsageError(
            "This pytest-xdist does not keep groups of tests together with this pytest: see pyproject"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test's captured log lines without halves of surrogate pairs: pytest-xdist cannot send such a half to
    the process that collects the reports, and one would end the whole run."""
    report = yield
    report.sections = [(name, without_lone_surrogates(text)) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None]:
    _let_pyspark_loggers_propagate()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None]:
    _let_pyspark_loggers_propagate()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    _let_pyspark_loggers_propagate()
    yield


def _let_pyspark_loggers_propagate() -> None:
    """Undo what PySpark does to its loggers of errors: it makes them loggers that do not propagate. At the begin of
    each phase of a test, pytest adds its handlers to such loggers, and PySpark's loggers replace the formatter of each
    handler, for all later tests too, by one that fails on an exception without a text."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if isinstance(logger := logging.root.manager.loggerDict.get(name), logging.Logger):
            logger.propagate = True


def _is_parallel(config: pytest.Config) -> bool:
    """Whether pytest-xdist distributes the tests by group; also in the processes that run them."""
    return bool(getattr(config.option, "loadgroup", False))


def _place_in_parallel_run(item: pytest.Item) -> int:
    """The place of a test in :data:`GROUPS`; after all groups come the long tests, then the others."""
    group = item.get_closest_marker("xdist_group")
    if group is not None:
        return GROUPS.index(group.args[0])
    return len(GROUPS) + (not item.path.as_posix().endswith(LONG_TESTS))


@pytest.fixture(params=list(ConnectProtocol), ids=lambda protocol: protocol.setting)
def protocol(request: pytest.FixtureRequest) -> ConnectProtocol:
    """``connect.protocol``: a test that requests this fixture runs with each protocol."""
    chosen: ConnectProtocol = request.param
    return chosen


@pytest.fixture(scope="session")
def kafka_jars(request: pytest.FixtureRequest) -> Path:
    """The folder with Kafka's jars."""
    with _or_skipped():
        return fetch(partial(_print_line, request.config))


@pytest.fixture(scope="session")
def connect_plugins(request: pytest.FixtureRequest) -> Path:
    """A folder with Kafka's own plug-ins of a Connect worker, for its class path."""
    with _or_skipped():
        return fetch_plugins(partial(_print_line, request.config))


@pytest.fixture(scope="session")
def streams_jars(request: pytest.FixtureRequest) -> Path:
    """The folder with the jars of Kafka Streams and its examples."""
    with _or_skipped():
        return fetch_streams(partial(_print_line, request.config))


@pytest.fixture(scope="session")
def spark_jars_if_any(request: pytest.FixtureRequest) -> Path | ProgramUnavailableError:
    """The folder with the jars of Spark's connectors, or why there is none: most tests of Spark need none."""
    try:
        return jars.fetched(partial(_print_line, request.config))
    except ProgramUnavailableError as reason:
        return reason


@pytest.fixture(scope="session")
def spark_jars(spark_jars_if_any: Path | ProgramUnavailableError) -> Path:
    """The folder with the jars of Spark's connectors, for a test that needs them."""
    with _or_skipped():
        if isinstance(spark_jars_if_any, ProgramUnavailableError):
            raise spark_jars_if_any
    return spark_jars_if_any


@pytest.fixture
def print_line(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints the progress of a long test, with ``-v`` only."""
    config: pytest.Config = request.config
    return partial(_print_line, config) if config.get_verbosity() > 0 else lambda line: None


def _print_line(config: pytest.Config, line: str) -> None:
    """Print ``line`` for the user, also while output is captured."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        sys.stderr.write(f"\n{line}\n")


@pytest.fixture(scope="session")
def real_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A real Apache Kafka broker, the same for all tests of the session."""
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("real-kafka"))
    with _or_skipped():
        kafka.start()
    yield kafka
    kafka.stop()


@pytest.fixture(scope="session")
def tools(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Kafka's own command-line tools."""
    return Tools(kafka_jars, tmp_path_factory.mktemp("tools") / "classes.jsa")


@contextmanager
def _or_skipped() -> Iterator[None]:
    try:
        yield
    except ProgramUnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Coterie's own broker, the same for all tests of the session: no test may kill it."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("embedded") / "data")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of the test's own."""
    broker = EmbeddedBroker(tmp_path / "data")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(
    params=[pytest.param("embedded", marks=pytest.mark.processes), pytest.param("kafka", marks=pytest.mark.kafka)]
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a broker: every test that requests this fixture runs against each kind."""
    fixture = {"embedded": "embedded_broker", "kafka": "real_kafka"}[request.param]
    broker: EmbeddedBroker | RealKafka = request.getfixturevalue(fixture)
    return broker.bootstrap_servers
