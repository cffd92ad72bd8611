"""The REST API of workers that are composed from settings: users, /health, pages of other addresses, added headers,
https, /admin; requests between workers over https, also with renewed certificates.
"""

import asyncio
import logging
import shutil
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from coterie.config import reloaded_files
from coterie.rest.endpoints import Role
from coterie.rest.users import PasswordHash, RestUser, write_users
from tests.certificates import Authority
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.composed import Composed, ComposedFleet
from tests.worker.simulated import SimulatedRuntime, until

ALICE, BOB = ("alice", "alice's password"), ("bob", "bob's password")
PAGE = "https://ui.example"
NEW = {"connector.class": "SimulatedSource", "tasks.max": "1"}


class WorkerFiles:
    """The files of a worker's settings: one PEM file with certificate and key, one with the CA, and the users."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.ca, self.users = folder / "worker.pem", folder / "ca.pem", folder / "users.json"

    def use_certificates_of(self, authority: Authority) -> None:
        """Let the worker use a new certificate of ``authority``, and trust only this CA."""
        pair = authority.pair(f"worker-{uuid.uuid4().hex[:8]}", subject="/CN=worker")
        shutil.copyfile(authority.certificate, self.ca)
        shutil.copyfile(pair.both, self.certificate)

    def set_user(self, login: tuple[str, str]) -> None:
        """Let only the administrator with this name and password log in."""
        name, password = login
        write_users(self.users, {name: RestUser(role=Role.ADMIN, password_hash=PasswordHash.from_password(password))})

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of a worker with one https listener, which reads these files."""
        return {
            "listeners": "https://127.0.0.1:0",
            "listeners.https.ssl.keystore.type": "PEM",
            "listeners.https.ssl.keystore.location": str(self.certificate),
            "listeners.https.ssl.truststore.type": "PEM",
            "listeners.https.ssl.truststore.location": str(self.ca),
            "listeners.https.ssl.client.auth": "requested",
            "rest.users.file": str(self.users),
        }


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def files(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> WorkerFiles:
    """A worker's files, with a certificate of ``authority`` and the user :data:`ALICE`. Workers read changed files
    almost at once."""
    monkeypatch.setattr(reloaded_files, "CHECK_INTERVAL_S", 0.05)
    files = WorkerFiles(tmp_path)
    files.use_certificates_of(authority)
    files.set_user(ALICE)
    return files


def client_of(authority: Authority, login: tuple[str, str] | None = ALICE) -> httpx.AsyncClient:
    """A client without a certificate, which trusts only ``authority``."""
    context = ssl.create_default_context(cafile=authority.certificate)
    return httpx.AsyncClient(verify=context, auth=login, trust_env=False, timeout=30)


def url_of(worker: Composed) -> str:
    return worker.url.replace("http:", "https:")


@asynccontextmanager
async def running_workers(
    count: int, broker: EmbeddedBroker, authority: Authority, properties: Mapping[str, str]
) -> AsyncIterator[list[Composed]]:
    """Workers of one group that has settled; the first is the leader. ``authority``: the CA of their certificates."""
    group = f"rest-{uuid.uuid4().hex[:8]}"
    topics = {f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")}
    needed = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "checkpoint.location": "/c",
        "heartbeat.interval.ms": "100",  # A worker notices a rebalance sooner.
    }
    async with AsyncExitStack() as stack:
        fleet = ComposedFleet({**needed, **topics, **properties}, stack)
        workers = [await fleet.start(name, SimulatedRuntime(), {}) for name in ("a", "b")[:count]]
        client = await stack.enter_async_context(client_of(authority))
        leaders: list[bool] = []

        async def are_settled() -> bool:
            """Ask only for what each worker answers itself: the workers have sent each other no request."""
            try:
                answers = [await client.get(f"{url_of(worker)}/coterie/worker") for worker in workers]
            except httpx.HTTPError:
                return False
            if any(answer.status_code != 200 for answer in answers):
                return False
            groups = [answer.json()["group"] for answer in answers]
            leaders[:] = [one["is_leader"] for one in groups]
            return sum(leaders) == 1 and len({one["leader_url"] for one in groups}) == 1

        await until(are_settled)
        yield sorted(workers, key=lambda worker: not leaders[workers.index(worker)])
        await fleet.stop()


async def test_each_setting_takes_effect(
    embedded_broker: EmbeddedBroker, authority: Authority, files: WorkerFiles
) -> None:
    properties = {
        **files.properties,
        "rest.health.open": "true",
        "access.control.allow.origin": PAGE,
        "access.control.allow.methods": "PUT",
        "response.http.headers.config": "set X-Frame-Options: DENY",
        "admin.listeners": "http://127.0.0.1:0",
    }
    async with (
        running_workers(1, embedded_broker, authority, properties) as (worker,),
        client_of(authority) as alice,
        client_of(authority, login=None) as stranger,
    ):
        url, (admin_url,) = url_of(worker), worker.admin_urls
        statuses = {
            (address, path): [(await client.get(address + path)).status_code for client in (alice, stranger)]
            for address in (url, admin_url)
            for path in ("/connectors", "/health", "/admin/loggers/root")
        }
        assert statuses == {
            (url, "/connectors"): [200, 401],
            (url, "/health"): [200, 200],
            (url, "/admin/loggers/root"): [404, 404],
            (admin_url, "/connectors"): [404, 404],
            (admin_url, "/health"): [404, 404],
            (admin_url, "/admin/loggers/root"): [200, 401],
        }
        with pytest.raises(httpx.TransportError):
            await alice.get(f"{worker.url}/connectors")  # http at the https listener

        for address in (url, admin_url):
            for client in (alice, stranger):
                answer = await client.get(f"{address}/connectors", headers={"Origin": PAGE})
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        answer = await alice.get(f"{url}/connectors", headers={"Origin": "https://other.example"})
        assert "Access-Control-Allow-Origin" not in answer.headers
        put = await alice.put(f"{url}/connectors/new/config", json=NEW, headers={"Origin": PAGE})
        assert put.status_code == 201
        delete = await alice.delete(f"{url}/connectors/new", headers={"Origin": PAGE})
        assert delete.status_code == 403


async def test_the_users_are_read_again_after_a_change(
    embedded_broker: EmbeddedBroker, authority: Authority, files: WorkerFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_workers(1, embedded_broker, authority, files.properties) as (worker,),
        client_of(authority, ALICE) as alice,
        client_of(authority, BOB) as bob,
    ):
        url = f"{url_of(worker)}/connectors"
        assert [(await client.get(url)).status_code for client in (alice, bob)] == [200, 401]
        files.set_user(BOB)

        async def bob_may_log_in() -> bool:
            return (await bob.get(url)).status_code == 200

        await until(bob_may_log_in)
        assert (await alice.get(url)).status_code == 401
        files.users.write_text("no users")
        await until(lambda: "Cannot reload the users" in caplog.text)
        assert [(await client.get(url)).status_code for client in (alice, bob)] == [401, 200]


async def test_workers_send_requests_to_each_other_over_https(
    embedded_broker: EmbeddedBroker, authority: Authority, files: WorkerFiles
) -> None:
    async with (
        running_workers(2, embedded_broker, authority, files.properties) as (leader, follower),
        client_of(authority) as client,
    ):
        group = await client.get(f"{url_of(follower)}/coterie/group")
        assert {member["url"] for member in group.json()["members"]} == {f"{url_of(leader)}/", f"{url_of(follower)}/"}

        names = ("one", "two")
        puts = [client.put(f"{url_of(follower)}/connectors/{name}/config", json=NEW) for name in names]
        assert [answer.status_code for answer in await asyncio.gather(*puts)] == [201, 201]

        # The follower runs one of the two connectors, and must send its task config to the leader.
        async def are_running() -> bool:
            answers = [await client.get(f"{url_of(leader)}/connectors/{name}/status") for name in names]
            if any(answer.status_code != 200 for answer in answers):
                return False
            owners = {answer.json()["connector"]["worker_id"] for answer in answers}
            return owners == {url_of(worker).removeprefix("https://") for worker in (leader, follower)} and all(
                [task["state"] for task in answer.json()["tasks"]] == ["RUNNING"] for answer in answers
            )

        await until(are_running)


async def test_new_connections_use_renewed_certificates_without_a_restart(
    embedded_broker: EmbeddedBroker, authority: Authority, files: WorkerFiles, tmp_path: Path
) -> None:
    renewed = Authority(tmp_path / "renewed", "renewed authority")
    async with running_workers(2, embedded_broker, authority, files.properties) as (leader, follower):
        files.use_certificates_of(renewed)

        async def listeners_use_renewed_certificates() -> bool:
            try:
                async with client_of(renewed) as client:
                    answers = [await client.get(f"{url_of(worker)}/connectors") for worker in (leader, follower)]
            except httpx.ConnectError:
                return False
            return all(answer.status_code == 200 for answer in answers)

        await until(listeners_use_renewed_certificates)
        for worker in (leader, follower):
            async with client_of(authority) as client:
                with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                    await client.get(f"{url_of(worker)}/connectors")
        # The follower's first request to the leader: it cannot use a connection from before the change.
        async with client_of(renewed) as client:
            answer = await client.put(f"{url_of(follower)}/connectors/new/config", json=NEW)
            assert answer.status_code == 201, answer.text


async def test_certificates_stay_in_use_while_their_new_file_is_invalid(
    embedded_broker: EmbeddedBroker, authority: Authority, files: WorkerFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_workers(2, embedded_broker, authority, files.properties) as (_, follower):
        files.ca.write_text("no certificates")

        def errors() -> list[str]:
            messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            return [message for message in messages if message.startswith("Cannot reload")]

        # Each worker has one listener and one client.
        await until(lambda: len(errors()) >= 4)
        async with client_of(authority) as client:
            answer = await client.put(f"{url_of(follower)}/connectors/new/config", json=NEW)
            assert answer.status_code == 201, answer.text
        assert sorted(error.partition(",")[0] for error in errors()) == [
            "Cannot reload the certificates for requests to other workers",
            "Cannot reload the certificates for requests to other workers",
            "Cannot reload the certificates of the REST API",
            "Cannot reload the certificates of the REST API",
        ]
