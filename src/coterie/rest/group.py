"""The group and its workers over HTTP: what only Coterie has, under ``/coterie/``.

Any worker answers. What the leader knows it is asked for; an order to one worker is handed on to that worker, by way of
the leader, who knows where it is.
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
"""How long each member is given to tell its own state; all are asked at once."""

CONNECT_HAS_NO_SUCH_PATH = b"HTTP 404 Not Found"
"""What Kafka Connect answers under a path that it does not know."""

Handler = Callable[[Request], Awaitable[Response]]


class GroupApi:
    """The handlers of one worker that concern workers and not connectors."""

    def __init__(self, worker: Worker, client: httpx.AsyncClient) -> None:
        self._worker = worker
        self._client = client

    def table(self) -> list[tuple[str, str, Handler]]:
        one = "/coterie/workers/{worker:path}"  # A name may hold slashes.
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

    # -- small hands --------------------------------------------------------------------------------------------------

    async def _order(self, request: Request, order: WorkerOrder) -> Response:
        answer = await self._worker.ask(order)
        match answer:
            case RequestRefused(problem=Problem.NOT_THIS_WORKER, leader_url=url):
                assert url is not None, "the leader knows where it is"
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
        """:raises ProblemRefusal: when who is asked cannot be reached, or is Connect's own, which has none of this."""
        try:
            response = await forward(self._client, request, b"", refused, path=path)
        except WorldError as error:
            who = "leader" if refused.problem is Problem.NOT_LEADER else "worker"
            message = (
                f"The {who} at {refused.leader_url} cannot be reached; if it is gone, its group goes on without it "
                f"when its session is over: ask again then. {error}"
            )
            raise problems.ProblemRefusal(replace(refused, message=message)) from error
        if response.status_code != 404 or CONNECT_HAS_NO_SUCH_PATH not in bytes(response.body):
            return response
        if refused.problem is Problem.NOT_THIS_WORKER:
            message = f"The worker at {refused.leader_url} is Connect's own, which takes no orders of this kind"
        else:
            view = await self._view()
            message = (
                f"The group is led by a Connect worker, at {refused.leader_url}, which tells nobody who is in it and "
                "who has what; and as long as there is one, there are neither drains nor static assignments. "
                f"Generation {view.generation} speaks {view.protocol}; this worker, {view.worker_id}, has "
                f"{len(view.assigned)} of its jobs (GET /coterie/worker). Who was the last to say something of a job "
                "stands in GET /connectors?expand=status. Restarts take the worker itself, under its own host:port"
            )
        raise problems.ProblemRefusal(RequestRefused(problem=Problem.NOT_POSSIBLE, message=message))

    async def _view(self) -> WorkerView:
        """:raises ProblemRefusal: when this worker ends."""
        return problems.expect(await self._worker.ask(DescribeWorker()), WorkerView)

    async def _word_of(self, member: MemberInfo) -> Mapping[str, object] | None:
        """What ``member`` says of itself now; None when it says nothing in time, or another member is there now."""
        word: Mapping[str, object] | None
        if member.url == self._worker.settings.url:
            answer = await self._worker.ask(DescribeWorker())
            word = self._own_word(answer) if isinstance(answer, WorkerView) else None
        else:
            word = await self._ask(member.url)
        place = word.get("group") if word is not None else None
        # Who has just lost its place, or is new, has no id: it is told of as it is.
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
