"""A group of two workers whose REST API real clients use: they talk to the worker that does not lead."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kafka.real_kafka import ProgramUnavailableError
from tests.logger_levels import kept_logger_levels
from tests.rest.served import ServedCluster, ServedWorker
from tests.rest_clients.packages import go_client, java_client, npm_client, python_client
from tests.worker.simulated import SimulatedRuntime

CLIENT_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that has ended."""

    code: int
    output: str
    errors: str


async def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Run ``command`` to its end."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), CLIENT_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(code=process.returncode, output=output.decode(), errors=errors.decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The workers of one group, with simulated runtimes."""

    follower: ServedWorker
    runtimes: tuple[SimulatedRuntime, ...]

    @property
    def url(self) -> str:
        """The address of the worker that the clients use."""
        return self.follower.url

    async def create(self, name: str, **keys: str) -> None:
        """Create a connector of two tasks, and wait until they run."""
        config = {"connector.class": "simulated.Source", "tasks.max": "2", **keys}
        answer = await self.follower.ask("POST", "/connectors", {"name": name, "config": config})
        assert answer.status_code == 201
        await self.follower.until_running(name, 2)

    async def states(self, name: str) -> list[str]:
        """The states of a connector and of its tasks."""
        status = (await self.follower.get(f"/connectors/{name}/status")).json()
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    async with ServedCluster() as cluster:
        runtimes = (SimulatedRuntime(), SimulatedRuntime())
        _, follower = [await cluster.serve(runtime=runtime) for runtime in runtimes]
        yield Group(follower=follower, runtimes=runtimes)


def installed(install: Callable[[], Path]) -> Path:
    """What ``install`` returns. If it cannot be had, the test is skipped; with CI set it fails."""
    try:
        return install()
    except ProgramUnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def kafka_connect_py() -> Path:
    """The folder with the programs of kafka-connect-py."""
    return installed(lambda: python_client("kafka-connect-py"))


@pytest.fixture(scope="session")
def kafka_connect_watcher() -> Path:
    """The folder with the programs of kafka-connect-watcher, and with a Python that has kafka-connect-api."""
    return installed(lambda: python_client("kafka-connect-watcher"))


@pytest.fixture(scope="session")
def kafka_connect_client() -> Path:
    """The folder in which the npm package kafka-connect-client is installed."""
    return installed(npm_client)


@pytest.fixture(scope="session")
def kafkaconnect() -> Path:
    """The folder with the programs of kafkaconnect, and with a Python that has it."""
    return installed(lambda: python_client("kafkaconnect"))


@pytest.fixture(scope="session")
def go_kafka_connect() -> Path:
    """The program that calls go-kafka-connect."""
    return installed(go_client)


@pytest.fixture(scope="session")
def java_kafka_connect_client() -> Path:
    """The folder with the jars of the Java library kafka-connect-client."""
    return installed(java_client)


@pytest.fixture(autouse=True)
def logger_levels() -> Iterator[None]:
    """Clients may set the levels of this process's loggers; after a test they are as before."""
    with kept_logger_levels():
        yield
