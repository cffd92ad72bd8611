"""Coterie's own HTTP paths about the group and its workers, under ``/coterie/``.

A client may send a request to any worker. A request for the group is forwarded to the leader. An order to one worker is
forwarded to the leader, which has the URLs of all members, and from the leader to that worker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import cast
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coterie import __version__
from coterie.herder.group_view import worker_id_in
from coterie.herder.requests import (
    DescribeWorker,
    DescribeWorkerGroup,
    Done,
    DrainWorker,
    GroupView,
    MemberInfo,
    Problem,
    RequestRefused,
    RestartWorker,
    UncordonWorker,
    WorkerOrder,
    WorkerView,
)
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import WorkerUrl
from coterie.rest import group_views, problems, views
from coterie.rest.leader import forward
from coterie.rest.views import Json
from coterie.worker.inbox import now_ms
from coterie.worker.worker import Worker

OWN_WORD_TIMEOUT_S = 1.0
"""The time that a member has to respond with its own state; all members are requested at once."""

CONNECT_HAS_NO_SUCH_PATH = b"HTTP 404 Not Found"
"""The body of Kafka Connect's response to an unknown path."""

Handler = Callable[[Request], Awaitable[Response]]


class GroupApi:
    """The handlers of one worker for requests about workers and the group."""

    def __init__(self, worker: Worker, client: httpx.AsyncClient) -> None:
        self._worker = worker
        self._client = client

    def table(self) -> list[tuple[str, str, Handler]]:
        one = "/coterie/workers/{worker:path}"  # A worker's name may contain slashes.
        return [
            ("GET", "/coterie/worker", self.describe_worker),
            ("GET", "/coterie/group", self.describe_group),
            ("POST", f"{one}/drain", self.drain),
            ("DELETE", f"{one}/drain", self.uncordon),
            ("POST", f"{one}/restart", self.restart),
        ]

    async def describe_worker(self, _: Request) -> Response:
        return JSONResponse(self._own_word(await self._view()))

    async def describe_group(self, request: Request) -> Response:
        answer = await self._worker.ask(DescribeWorkerGroup())
        match answer:
            case RequestRefused(problem=Problem.NOT_LEADER):
                return await self._hand_on(request, answer)
            case _:
                view = problems.expect(answer, GroupView)
                async with asyncio.TaskGroup() as asking:
                    words = [asking.create_task(self._word_of(member)) for member in view.members]
                return JSONResponse(group_views.group(view, [word.result() for word in words]))

    async def drain(self, request: Request) -> Response:
        return await self._order(request, DrainWorker(worker=_worker(request)))

    async def uncordon(self, request: Request) -> Response:
        return await self._order(request, UncordonWorker(worker=_worker(request)))

    async def restart(self, request: Request) -> Response:
        obstacle = await self._worker.obstacle()
        return await self._order(request, RestartWorker(worker=_worker(request), obstacle=obstacle))

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _order(self, request: Request, order: WorkerOrder) -> Response:
        answer = await self._worker.ask(order)
        match answer:
            case RequestRefused(problem=Problem.NOT_THIS_WORKER, leader_url=url):
                assert url is not None, "the leader has the URL of every member"
                what = request.url.path.rpartition("/")[2]
                return await self._hand_on(request, answer, f"/coterie/workers/{quote(worker_id_in(url))}/{what}")
            case RequestRefused(problem=Problem.NOT_LEADER):
                return await self._hand_on(request, answer)
            case _:
                problems.expect(answer, Done)
                settings = self._worker.settings
                ordered = {
                    "worker_id": worker_id_in(settings.url),
                    "name": settings.shown_name,
                    "life": self._worker.life,
                }
                return JSONResponse(ordered, status_code=202)

    async def _hand_on(self, request: Request, refused: RequestRefused, path: str | None = None) -> Response:
        """Forward ``request`` to the leader or to the worker that it names.

        :raises ProblemRefusal: when that worker cannot be reached, or is a Kafka Connect worker, which has none of
            these paths.
        """
        try:
            response = await forward(self._client, request, b"", refused, path=path)
        except WorldError as error:
            who = "leader" if refused.problem is Problem.NOT_LEADER else "worker"
            message = (
                f"The {who} at {refused.leader_url} cannot be reached. If its process has ended, the group removes it "
                f"after its session timeout: retry the request then. {error}"
            )
            raise problems.ProblemRefusal(replace(refused, message=message)) from error
        if response.status_code != 404 or CONNECT_HAS_NO_SUCH_PATH not in bytes(response.body):
            return response
        if refused.problem is Problem.NOT_THIS_WORKER:
            message = f"The worker at {refused.leader_url} is a Kafka Connect worker, which has no such request"
        else:
            view = await self._view()
            message = (
                f"The leader at {refused.leader_url} is a Kafka Connect worker, which has no group API. While a "
                "Connect worker is in the group, drains and static assignments are not possible. "
                f"Generation {view.generation} uses protocol {view.protocol}; this worker, {view.worker_id}, is "
                f"assigned {len(view.assigned)} jobs (GET /coterie/worker). The last status of each job: "
                "GET /connectors?expand=status. To restart a worker, send the request to that worker's own host:port"
            )
        raise problems.ProblemRefusal(RequestRefused(problem=Problem.NOT_POSSIBLE, message=message))

    async def _view(self) -> WorkerView:
        """The state of this worker.

        :raises ProblemRefusal: when this worker is shutting down.
        """
        return problems.expect(await self._worker.ask(DescribeWorker()), WorkerView)

    async def _word_of(self, member: MemberInfo) -> Mapping[str, object] | None:
        """The ``GET /coterie/worker`` of ``member``; None when it does not respond in time, or when another member now
        uses its URL."""
        word: Mapping[str, object] | None
        if member.url == self._worker.settings.url:
            answer = await self._worker.ask(DescribeWorker())
            word = self._own_word(answer) if isinstance(answer, WorkerView) else None
        else:
            word = await self._ask(member.url)
        place = word.get("group") if word is not None else None
        # A worker that has just lost its membership, or is new, has no member id: its response counts.
        is_other = isinstance(place, Mapping) and place.get("member_id") not in ("", member.member_id)
        return None if is_other else word

    async def _ask(self, url: WorkerUrl) -> Mapping[str, object] | None:
        try:
            async with asyncio.timeout(OWN_WORD_TIMEOUT_S):
                response = await self._client.get(f"{url.rstrip('/')}/coterie/worker")
            said = response.json() if response.is_success else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None
        return cast(Mapping[str, object], said) if isinstance(said, dict) else None

    def _own_word(self, view: WorkerView) -> Json:
        return views.worker(
            view,
            now_ms=now_ms(),
            version=__version__,
            life=self._worker.life,
            lacks=self._worker.lacks(),
            stall_ms=self._worker.stall.longest_ms,
        )


def _worker(request: Request) -> str:
    worker: str = request.path_params["worker"]
    return worker
