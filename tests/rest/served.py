"""Simulated workers whose REST API is served on real ports."""

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Self

import httpx

from coterie.config.reloaded_files import ReloadedFiles
from coterie.herder.messages import Exit
from coterie.herder.seams import LeaderClient
from coterie.herder.session_keys import decode_base64_or_raise
from coterie.nouns.ids import GroupId
from coterie.rest.access import AccessRules
from coterie.rest.app import create_app
from coterie.rest.endpoints import ENDPOINTS, Endpoint
from coterie.rest.leader import HttpLeaderClient, open_http_client
from coterie.rest.server import BoundListener, RequestIntake, open_listening_socket, serve_while_work_runs
from coterie.worker.worker import Worker
from tests.worker.connect_cluster import ConnectCluster
from tests.worker.simulated import Cluster, Running, SimulatedRuntime, until

JSON = {"Content-Type": "application/json"}
GROUP_ID = GroupId("simulated-group")


class ServedCluster(Cluster):
    """Workers reach each other, and tests reach them, over HTTP."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.client = open_http_client()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await super().__aexit__(*exception)
        await self.client.aclose()

    def session_key(self) -> bytes:
        """The newest key that the group's leader has written."""
        value = self.config_log.latest()[b"session-key"]
        assert value is not None
        return decode_base64_or_raise(json.loads(value)["key"])

    async def serve(
        self,
        *,
        runtime: SimulatedRuntime | None = None,
        wait: bool = True,
        access: AccessRules | None = None,
        tls: ReloadedFiles[ssl.SSLContext] | None = None,
        topic_tracking_enabled: bool = True,
        endpoints: Sequence[Endpoint] = ENDPOINTS,
    ) -> "ServedWorker":
        listener = BoundListener(socket=open_listening_socket("127.0.0.1", 0), tls=tls)
        port = listener.port
        intake = RequestIntake()

        async def run(worker: Worker) -> Exit:
            app = create_app(
                worker, self.client, cluster_id="simulated", group_id=GROUP_ID, access=access, endpoints=endpoints
            )
            return await serve_while_work_runs(app, [listener], worker.run(), intake=intake)

        running = await self.start(
            runtime=runtime,
            wait=wait,
            port=port,
            run=run,
            topic_tracking_enabled=topic_tracking_enabled,
            close_intake=intake.close,
        )
        return ServedWorker(running, self.client, f"http://127.0.0.1:{port}")

    def leader_client(self) -> LeaderClient:
        return HttpLeaderClient(self.client)


class ServedConnectCluster(ServedCluster, ConnectCluster):
    """Workers of a connect group."""


class WorkerClient:
    """An HTTP client of one worker."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self.url = url
        self._client = client

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] = JSON,
    ) -> httpx.Response:
        """``body`` is sent as JSON, ``raw`` as it is, with ``headers``."""
        if raw is not None:
            return await self._client.request(method, self.url + path, content=raw, headers=headers)
        return await self._client.request(method, self.url + path, json=body, headers=None if body is None else headers)

    async def send(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> httpx.Response:
        """Send exactly this ``path`` and these ``headers``. The HTTP client itself resolves ``..`` in a path, and adds
        headers."""
        request = self._client.build_request(method, self.url, content=content, headers=headers)
        if "Accept" not in headers:
            del request.headers["Accept"]
        request.extensions = {**request.extensions, "target": path.encode()}
        return await self._client.send(request)

    async def get(self, path: str) -> httpx.Response:
        return await self.ask("GET", path)

    async def until_running(self, name: str, tasks: int) -> None:
        """Until the worker shows connector ``name`` with ``tasks`` tasks, all running."""

        async def is_running() -> bool:
            response = await self.get(f"/connectors/{name}/status")
            if response.status_code != 200:
                return False
            return [task["state"] for task in response.json()["tasks"]] == ["RUNNING"] * tasks

        await until(is_running)


class ServedWorker(WorkerClient):
    """One worker and an HTTP client to it."""

    def __init__(self, running: Running, client: httpx.AsyncClient, url: str) -> None:
        super().__init__(client, url)
        self.running = running
