"""The HTTP requests to a worker: those of users and operators, and the task configs that workers send to the leader."""

from collections.abc import Callable
from typing import Self

from coterie.herder import messages as herder
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.lab.simulator.network import NetworkCall
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.lab.simulator.workers.settings import REQUEST_TIMEOUT_MS
from coterie.nouns.ids import WorkerUrl


class RestEndpoints:
    """The REST endpoints of one process, and its client of the leader's endpoints."""

    def __init__(
        self,
        process: WorkerProcess,
        cluster: SharedByWorkers,
        feed_herder: Callable[[herder.Event], None],
        endpoints_of: Callable[[WorkerUrl], Self | None],
    ) -> None:
        """``feed_herder`` passes an event to the herder of ``process``; ``endpoints_of`` returns the endpoints of the
        newest process of the worker with a URL, None if no process of this worker runs."""
        self._process = process
        self._cluster = cluster
        self._feed_herder = feed_herder
        self._endpoints_of = endpoints_of
        self._answer_callbacks: dict[RequestId, Callable[[Answer], None]] = {}
        """For each request without a response, the function that receives it."""
        self._request_count = 0

    def send_to_herder(self, request: Request, on_answer: Callable[[Answer], None]) -> None:
        """Pass ``request`` to the herder at once, not over the network. ``on_answer`` is called once with the response;
        never if the process ends before."""
        request_id = RequestId(self._request_count)
        self._request_count += 1
        self._answer_callbacks[request_id] = on_answer
        fresh_incarnation = self._cluster.fresh_incarnation()
        self._feed_herder(herder.RequestArrived(id=request_id, request=request, fresh_incarnation=fresh_incarnation))

    def deliver_answer(self, reply: herder.Reply) -> None:
        """Pass ``reply``, a response of the herder, to the sender of the request."""
        self._answer_callbacks.pop(reply.id)(reply.answer)

    def publish_task_configs(self, chore: herder.SendTaskConfigsToLeader) -> None:
        """Send the task configs of ``chore``, signed if ``chore`` has a key, to the leader's internal endpoint, over
        the leader's link, which may be faulty. The herder receives the result as an event later; the lack of a
        response in time, or of a running leader, is a refusal."""
        process = self._process

        def report_result(refusal: str | None, *, forbidden: bool = False) -> None:
            task_configs_published = herder.TaskConfigsPublicationEnded(
                connector=chore.connector,
                config_line_offset=chore.config_line_offset,
                refusal=refusal,
                is_signature_refused=forbidden,
            )
            process.call_now_or_on_resume(lambda: self._feed_herder(task_configs_published))

        leader = self._endpoints_of(chore.leader_url)
        if leader is None:
            process.call_after(50, lambda: report_result("connection refused"))
            return

        def serve(call: NetworkCall) -> None:
            body = repr(chore.configs).encode()
            signature = chore.signing_key.signature(body) if chore.signing_key is not None else None
            request = PutTaskConfigs(
                connector=chore.connector,
                configs=chore.configs,
                signature=signature,
                incarnation=chore.incarnation,
            )
            leader._process.call_now_or_on_resume(lambda: leader.send_to_herder(request, call.respond))

        def on_response(answer: object) -> None:
            assert isinstance(answer, SuccessWithoutContent | RequestRefused)
            if isinstance(answer, RequestRefused):
                report_result(answer.message, forbidden=answer.problem is Problem.FORBIDDEN)
            else:
                report_result(None)

        call = self._cluster.network.send_request(
            leader._process.service, serve, on_response=on_response, on_failure=report_result
        )
        process.call_after(REQUEST_TIMEOUT_MS + 5_000, lambda: call.fail_now("no response"))
