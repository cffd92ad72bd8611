"""The HTTP requests to a worker: those of users and operators, and the task configs that workers send to the leader."""

from collections.abc import Callable
from typing import Self

from coterie.herder import messages as herder
from coterie.herder.requests import Answer, Done, Problem, PutTaskConfigs, Request, RequestId, RequestRefused
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.settings import REQUEST_TIMEOUT_MS
from coterie.lab.simulator.network import Call
from coterie.nouns.ids import WorkerUrl


class Rest:
    """The REST endpoints of one process, and its client of the leader's endpoints."""

    def __init__(
        self,
        process: Process,
        cluster: Cluster,
        feed_herder: Callable[[herder.Event], None],
        at: Callable[[WorkerUrl], Self | None],
    ) -> None:
        """``feed_herder`` passes an event to the process's herder; ``at`` returns the endpoints of the running worker
        with this URL, None if it does not run."""
        self._process = process
        self._cluster = cluster
        self._feed_herder = feed_herder
        self._at = at
        self._asked: dict[RequestId, Callable[[Answer], None]] = {}
        """For each request without a response, the function that receives it."""
        self._requests = 0

    def ask(self, request: Request, answered: Callable[[Answer], None]) -> None:
        """Pass ``request`` to the herder. ``answered`` is called once with the response; never if the process ends
        before."""
        id_ = RequestId(self._requests)
        self._requests += 1
        self._asked[id_] = answered
        fresh = self._cluster.fresh_incarnation()
        self._feed_herder(herder.RequestArrived(id=id_, request=request, fresh_incarnation=fresh))

    def answer(self, reply: herder.Reply) -> None:
        """Pass a response of the herder to the sender of its request."""
        self._asked.pop(reply.id)(reply.answer)

    def publish(self, chore: herder.PublishTaskConfigs) -> None:
        """Send task configs to the leader's internal endpoint, over the leader's link, which may be faulty. The herder
        receives the result."""
        process = self._process

        def published(refusal: str | None, *, forbidden: bool = False) -> None:
            done = herder.TaskConfigsPublished(
                connector=chore.connector,
                config_line_offset=chore.config_line_offset,
                refusal=refusal,
                forbidden=forbidden,
            )
            process.deliver(lambda: self._feed_herder(done))

        leader = self._at(chore.leader_url)
        if leader is None:
            process.after(50, lambda: published("connection refused"))
            return

        def serve(call: Call) -> None:
            body = repr(chore.configs).encode()
            signature = chore.signing_key.signature(body) if chore.signing_key is not None else None
            request = PutTaskConfigs(connector=chore.connector, configs=chore.configs, signature=signature)
            leader._process.deliver(lambda: leader.ask(request, call.answer))

        def answered(answer: object) -> None:
            assert isinstance(answer, Done | RequestRefused)
            if isinstance(answer, RequestRefused):
                published(answer.message, forbidden=answer.problem is Problem.FORBIDDEN)
            else:
                published(None)

        call = self._cluster.network.call(leader._process.service, serve, answered=answered, failed=published)
        process.after(REQUEST_TIMEOUT_MS + 5_000, lambda: call.give_up("no response"))
