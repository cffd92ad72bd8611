"""Coterie's own HTTP paths about the group and its workers, under ``/coterie/``.

A client may send a request to any worker. In a classic group only the leader has the view of the group: a request for
the group is forwarded to the leader, and an order to one worker (drain, uncordon, restart) to the leader and by the
leader to that worker. In a connect group every worker requests the view from the coordinator: each worker answers a
request for the group, and forwards an order directly to the named worker.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import httpx
from starlette.requests import Request
from starlette.responses import Response

from coterie import __version__
from coterie.herder.group_view import worker_id_of_url
from coterie.herder.requests.orders import CancelDrain, DrainWorker, RestartWorker, WorkerOrder
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.views import DescribeWorker, DescribeWorkerGroup, GroupView, MemberInfo, WorkerView
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import WorkerUrl
from coterie.rest import group_views, problems, views
from coterie.rest.callers import add_caller_headers_if_signable
from coterie.rest.endpoints import Operation, Role
from coterie.rest.herder_requests import HerderClient
from coterie.rest.json_response import JSONResponse
from coterie.rest.leader import ResponseMissingError, forward_to_worker
from coterie.rest.path_encoding import encoded_path
from coterie.rest.paths import request_path_segments
from coterie.rest.request_context import Caller
from coterie.rest.request_parameters import is_query_value_true
from coterie.rest.routing import Handlers
from coterie.rest.views import Json
from coterie.worker.inbox import now_ms

MEMBER_VIEW_TIMEOUT_S = 1.0
"""How long ``GET /coterie/group`` waits for the ``GET /coterie/worker`` of each other member. The requests to all
members are sent at the same time."""

CONNECT_NOT_FOUND_BODY = b"HTTP 404 Not Found"
"""Text in the body of Kafka Connect's response to an unknown path: a worker that returns it is a Connect worker."""


class GroupAndWorkersResource:
    """The HTTP handlers of one worker for ``/coterie``: the group and its workers."""

    def __init__(self, herder: HerderClient) -> None:
        self._worker = herder.worker
        self._herder = herder
        self._http_client = herder.http_client

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.DESCRIBE_WORKER: self.describe_this_worker,
            Operation.DESCRIBE_GROUP: self.describe_group,
            Operation.DRAIN_WORKER: self.drain_worker,
            Operation.UNCORDON_WORKER: self.cancel_drain_of_worker,
            Operation.RESTART_WORKER: self.restart_worker,
        }

    async def describe_this_worker(self, _: Request) -> Response:
        """The state of this worker, of its membership and of its tasks."""
        return JSONResponse(self._own_worker_view_json(await self._own_worker_view()))

    async def describe_group(self, request: Request) -> Response:
        """The state of the group, from the view of the herder (in a classic group the leader's last round, in a connect
        group the coordinator's description) and from each member's own state. In a classic group every worker except
        the leader forwards the request to the leader."""
        answer = await self._worker.ask(DescribeWorkerGroup())
        match answer:
            case RequestRefused(problem=Problem.NOT_LEADER):
                return await self._forward_to_coterie_worker_or_raise(request, answer)
            case _:
                view = problems.answer_or_raise(answer, GroupView)
                async with asyncio.TaskGroup() as task_group:
                    view_requests = [
                        task_group.create_task(self._valid_member_view_json_or_none(member)) for member in view.members
                    ]
                return JSONResponse(
                    group_views.group_json(view, [view_request.result() for view_request in view_requests])
                )

    async def drain_worker(self, request: Request) -> Response:
        """Order the worker in the path to drain. Responds when the order is accepted; afterwards the worker's jobs move
        to other workers, and its process ends."""
        return await self._order_worker(request, DrainWorker(worker=_worker_in_path(request)))

    async def cancel_drain_of_worker(self, request: Request) -> Response:
        """Cancel the drain of the worker in the path: the worker gets jobs again."""
        return await self._order_worker(request, CancelDrain(worker=_worker_in_path(request)))

    async def restart_worker(self, request: Request) -> Response:
        """Restart the process of the worker in the path; the worker keeps its membership. With ``?moveJobs=true`` its
        jobs first move to other workers, and the new process joins as a new member. The request is refused when the
        settings file of the named worker is invalid; that of a worker that only forwards the request does not
        matter."""
        moves_jobs = is_query_value_true(request, "moveJobs")
        settings_error = await self._worker.settings_error()
        return await self._order_worker(
            request,
            RestartWorker(worker=_worker_in_path(request), settings_error=settings_error, moves_jobs=moves_jobs),
        )

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _order_worker(self, request: Request, order: WorkerOrder) -> Response:
        """Give ``order``, which drains or restarts a worker or cancels its drain, to this worker's herder; forward
        ``request`` if another worker must receive the order. Returns 202 with the identity of the worker that has
        accepted the order, or the other worker's response.

        :raises HerderRefusal: when the herder refused the order, or the request could not be forwarded.
        """
        answer = await self._worker.ask(order)
        match answer:
            case RequestRefused(problem=Problem.NOT_THIS_WORKER, redirect_url=url):
                assert url is not None, "the leader has the URL of every member"
                action = request_path_segments(request)[-1]
                return await self._forward_to_coterie_worker_or_raise(
                    request, answer, encoded_path(("coterie", "workers", worker_id_of_url(url), action))
                )
            case RequestRefused(problem=Problem.NOT_LEADER):
                return await self._forward_to_coterie_worker_or_raise(request, answer)
            case _:
                problems.answer_or_raise(answer, SuccessWithoutContent)
                settings = self._worker.settings
                worker_identity = {
                    "worker_id": worker_id_of_url(settings.url),
                    "name": settings.display_name,
                    "life": self._worker.boot_id,
                }
                return JSONResponse(worker_identity, status_code=202)

    async def _forward_to_coterie_worker_or_raise(
        self, request: Request, redirection: RequestRefused, path: str | None = None
    ) -> Response:
        """Forward ``request`` to the worker at the URL in ``redirection`` and return its response. That worker is the
        leader or, for an order, the worker that must carry out the order. ``path`` replaces the path of ``request``
        unless it is None.

        :raises HerderRefusal: when the worker cannot be reached, does not respond, or is a Kafka Connect worker, which
            has no paths under ``/coterie/``; also when ``request`` was forwarded too often. The problem is
            OUTCOME_UNKNOWN if an order was sent and no response has come.
        """
        role = "leader" if redirection.problem is Problem.NOT_LEADER else "worker"
        try:
            response = await forward_to_worker(
                self._http_client, request, b"", redirection, self._herder.sign, path=path
            )
        except WorldError as error:
            if isinstance(error, ResponseMissingError) and request.method != "GET":
                message = (
                    f"No response came after the order was sent to the {role} at {redirection.redirect_url}: the order "
                    "may have been accepted; read GET /coterie/group to find out, where a worker that drains has "
                    f"draining, and one that has restarted has another life. {error}"
                )
                raise problems.HerderRefusal(
                    RequestRefused(problem=Problem.OUTCOME_UNKNOWN, message=message)
                ) from error
            message = (
                f"The {role} at {redirection.redirect_url} cannot be reached or does not respond. If its process has "
                f"ended, the group removes it after its session timeout: retry the request then. {error}"
            )
            raise problems.HerderRefusal(replace(redirection, message=message)) from error
        if response.status_code != 404 or CONNECT_NOT_FOUND_BODY not in bytes(response.body):
            return response
        if redirection.problem is Problem.NOT_THIS_WORKER:
            message = (
                f"The worker at {redirection.redirect_url} is a Kafka Connect worker, which cannot serve this request"
            )
        else:
            view = await self._own_worker_view()
            message = (
                f"The leader at {redirection.redirect_url} is a Kafka Connect worker, which has no group API. While a "
                "Connect worker is in the group, drains and static assignments are not possible. "
                f"Generation {view.generation} uses protocol {view.protocol}; this worker, {view.worker_id}, is "
                f"assigned {len(view.assigned)} jobs (GET /coterie/worker). The last status of each job: "
                "GET /connectors?expand=status. To restart a worker, send the request to that worker's own host:port"
            )
        raise problems.HerderRefusal(RequestRefused(problem=Problem.NOT_POSSIBLE, message=message))

    async def _own_worker_view(self) -> WorkerView:
        """The state of this worker.

        :raises HerderRefusal: when this worker is still starting, has ended, or has too many events to process.
        """
        return problems.answer_or_raise(await self._worker.ask(DescribeWorker()), WorkerView)

    async def _valid_member_view_json_or_none(self, member: MemberInfo) -> Mapping[str, object] | None:
        """The JSON of ``GET /coterie/worker`` of ``member``, which for this worker needs no request. None when
        ``member`` does not respond with success in time, or when another member now uses its URL."""
        view_json: Mapping[str, object] | None
        if member.url == self._worker.settings.url:
            answer = await self._worker.ask(DescribeWorker())
            view_json = self._own_worker_view_json(answer) if isinstance(answer, WorkerView) else None
        else:
            view_json = await self._request_worker_view_json_or_none(member.url)
        membership = view_json.get("group") if view_json is not None else None
        # A worker that has just lost its membership, or is new, has no member id: its response counts.
        is_other_member = isinstance(membership, Mapping) and membership.get("member_id") not in ("", member.member_id)
        return None if is_other_member else view_json

    async def _request_worker_view_json_or_none(self, url: WorkerUrl) -> Mapping[str, object] | None:
        """The response of the worker at ``url`` to ``GET /coterie/worker``; None when it does not return a JSON object
        with a status of success within :data:`MEMBER_VIEW_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(MEMBER_VIEW_TIMEOUT_S):
                member_request = self._http_client.build_request("GET", f"{url.rstrip('/')}/coterie/worker")
                own_id = worker_id_of_url(self._worker.settings.url)
                caller = Caller(user=f"worker {own_id}", role=Role.READ, address=own_id)
                await add_caller_headers_if_signable(member_request, caller, self._herder.sign)
                response = await self._http_client.send(member_request)
            view_json = response.json() if response.is_success else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
            return None
        return cast(Mapping[str, object], view_json) if isinstance(view_json, dict) else None

    def _own_worker_view_json(self, view: WorkerView) -> Json:
        """``view``, the state of this worker, as the JSON of its ``GET /coterie/worker``."""
        return views.worker_json(
            view,
            now_ms=now_ms(),
            version=__version__,
            boot_id=self._worker.boot_id,
            missing_jars=self._worker.missing_jars(),
            longest_stall_ms=self._worker.stall.longest_ms,
        )


def _worker_in_path(request: Request) -> str:
    """The text in the path of ``request`` that names a worker: the worker's name, ``host:port`` or instance id."""
    worker: str = request.path_params["worker"]
    return worker
