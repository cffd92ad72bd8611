"""The connections between workers and the coordinator of a connect group, as TCP has them: in order, and answered in
order, until they end. An end may be seen on one side only, and a request may arrive long after its sender has closed
the connection.

The broker's side of a connection is the real `MemberConnection`.
"""

from collections import deque
from collections.abc import Callable

from coterie.broker.groups.member_connection import MemberConnection
from coterie.groups.connect.messages import Heartbeat, Response
from coterie.lab.connect_translation import to_coordinator_request, to_worker_response
from coterie.lab.simulator.connect.coordinator import SimConnectCoordinator
from coterie.lab.simulator.network import Direction, Network
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcess
from coterie.lab.simulator.workers.settings import GROUP_ID, REQUEST_DELAY_MAX_MS
from coterie.lab.simulator.world import World
from coterie.member.connect import messages as member_messages
from coterie.member.connect.messages import DescribeRequest
from coterie.member.events import RequestFailed, RequestId, ResponseReceived, Send
from coterie.nouns.connect_groups import HeartbeatResponse


class ConnectionFaults:
    """The faults of requests that all workers share, in addition to the faults of links (`Link`): requests that arrive
    twice."""

    def __init__(self) -> None:
        self.repeat_probability = 0.0
        """The probability that a request arrives a second time, some seconds later."""


class SimConnection:
    """One connection of a process to the coordinator."""

    def __init__(
        self,
        world: World,
        network: Network,
        coordinator: SimConnectCoordinator,
        faults: ConnectionFaults,
        process: SimProcess,
        feed_member: Callable[[member_messages.Event], None],
    ) -> None:
        """``feed_member`` passes an event to the member of ``process``."""
        self._world = world
        self._network = network
        self._coordinator = coordinator
        self._faults = faults
        self.process = process
        self._feed_member = feed_member
        self._link = process.service
        # the worker's side
        self.is_open = True
        """Whether the worker's process uses the connection."""
        self._unanswered: dict[RequestId, None] = {}
        self._received: deque[tuple[RequestId, member_messages.Response]] = deque()
        """Responses that the process has not read; a paused process reads nothing."""
        # the way to the broker
        self._sent_count = 0
        self._arrived: dict[int, Callable[[], None]] = {}
        """What has arrived at the broker before an earlier message: by the message's number, the function that handles
        it."""
        self._handled_count = 0
        # the broker's side
        self._broker_side = MemberConnection(coordinator)
        self.is_open_at_broker = True
        self._in_order: deque[int] = deque()
        """The numbers of the requests without a sent response, in order."""
        self._ready: dict[int, tuple[RequestId, Response]] = {}
        """The responses that wait for those to earlier requests."""
        # the way to the worker
        self._response_count = 0
        self._arrived_responses: dict[int, tuple[RequestId, member_messages.Response]] = {}
        self._received_count = 0

    # -- the worker's side ------------------------------------------------------------------------------------------

    def send_request(self, send_effect: Send[member_messages.Request]) -> None:
        """Send a request of the member; the member receives the response or the failure."""
        self._unanswered[send_effect.id] = None
        late_ms = 0
        if (probability := self._network.link_of(self._link).break_probability) and self._world.draw_bool(probability):
            late_ms = self._world.rng.randint(0, REQUEST_DELAY_MAX_MS)
            self._world.add_record(RecordKind.BROKEN, self._link, late_ms)
            self.break_at_worker("the connection broke", within_ms=300)
        self._send_in_order(lambda: self._handle_request(send_effect), late_ms=late_ms)
        self._world.call_after(
            send_effect.request.response_timeout_ms,
            lambda: self.process.deliver_callback(lambda: self._close_if_unanswered(send_effect)),
        )

    def _close_if_unanswered(self, send_effect: Send[member_messages.Request]) -> None:
        """Close the connection, if the response has not arrived."""
        if send_effect.id in self._unanswered:
            self.close("no response")

    def close(self, reason: str) -> None:
        """The worker closes the connection in an orderly way (FIN). All requests without a response have failed."""
        if self.is_open:
            self._end_at_worker(reason)
            self._send_in_order(self.end_at_broker)

    def close_with_process(self, *, is_orderly: bool) -> None:
        """The process has ended: its host closes the connection, with FIN if ``is_orderly``, else with RST."""
        if self.is_open:
            self.is_open = False
            self._send_in_order(self.end_at_broker if is_orderly else self.reset_at_broker)

    def break_at_worker(self, reason: str, *, within_ms: int) -> None:
        """Let the worker detect the end of the connection at a random time in the next ``within_ms``; the broker does
        not detect it."""
        in_ms = self._world.rng.randint(1, within_ms)
        self._world.call_after(in_ms, lambda: self.process.deliver_callback(lambda: self._end_at_worker(reason)))

    def _end_at_worker(self, reason: str) -> None:
        """End the connection on the worker's side: the worker no longer uses it, and all requests without a response
        fail with ``reason``. Does nothing if it has ended there already."""
        if not self.is_open:
            return
        self.is_open = False
        self._received.clear()
        unanswered, self._unanswered = self._unanswered, {}
        for request_id in unanswered:
            self._feed_member(RequestFailed(id=request_id, reason=reason))

    def _send_in_order(self, handle: Callable[[], None], *, late_ms: int = 0) -> None:
        """Send something to the broker, where ``handle`` is called, after all that was sent before. If it is lost,
        nothing arrives any more on this connection."""
        number, self._sent_count = self._sent_count, self._sent_count + 1

        def on_arrival() -> None:
            self._arrived[number] = handle
            while (next_one := self._arrived.pop(self._handled_count, None)) is not None:
                self._handled_count += 1
                next_one()

        self._network.send_message(self._link, Direction.TO_BROKER, on_arrival, on_loss=lambda: None, late_ms=late_ms)

    def _read_next_response(self) -> None:
        """The process reads the next response."""
        if self._received:
            request_id, response = self._received.popleft()
            if request_id in self._unanswered:
                del self._unanswered[request_id]
                self._feed_member(ResponseReceived(id=request_id, response=response))

    # -- the broker's side ------------------------------------------------------------------------------------------

    def _handle_request(self, send_effect: Send[member_messages.Request]) -> None:
        """The broker reads a request. If it does not have the connection any more, it resets it."""
        if not (self.is_open_at_broker and self._coordinator.is_up):
            self.is_open_at_broker = False
            self.break_at_worker("the connection was reset", within_ms=20)
            return
        number = self._broker_side.add_request()
        request = to_coordinator_request(
            send_effect.request,
            self._coordinator.fresh_reply_to(),
            connection=self._broker_side.number,
            client_id=self._link,
        )
        self._in_order.append(number)
        if isinstance(request, Heartbeat):
            request = self._broker_side.begin_heartbeat(number, GROUP_ID, request, may_hold=True)
        self._coordinator.serve(
            self._link, request, lambda response: self._on_response(number, send_effect.id, response)
        )
        if not isinstance(send_effect.request, DescribeRequest) and self._world.draw_bool(
            self._faults.repeat_probability
        ):
            self._world.call_after(
                self._world.rng.randint(0, REQUEST_DELAY_MAX_MS),
                lambda: self._handle_repeated_request(send_effect.request),
            )

    def _handle_repeated_request(self, request: member_messages.Request) -> None:
        """The broker reads a request for the second time; its sender does not see the response."""
        if self._coordinator.is_up:
            self._world.add_record(RecordKind.REPEATED, self._link)
            repeated = to_coordinator_request(
                request,
                self._coordinator.fresh_reply_to(),
                connection=self._broker_side.number,
                client_id=self._link,
            )
            self._coordinator.serve(self._link, repeated, lambda response: None)

    def _on_response(self, number: int, request_id: RequestId, response: Response) -> None:
        """The coordinator has responded to a request; the response leaves after those to all earlier requests."""
        self._broker_side.end_heartbeat(number, response if isinstance(response, HeartbeatResponse) else None)
        self._ready[number] = (request_id, response)
        while self._in_order and self._in_order[0] in self._ready:
            self._send_response(*self._ready.pop(self._in_order.popleft()))

    def _send_response(self, request_id: RequestId, response: Response) -> None:
        """Send a response, unless the broker has lost the connection."""
        if not self.is_open_at_broker:
            return
        number, self._response_count = self._response_count, self._response_count + 1
        worker_response = to_worker_response(response)

        def on_arrival() -> None:
            self._arrived_responses[number] = (request_id, worker_response)
            while (next_one := self._arrived_responses.pop(self._received_count, None)) is not None:
                self._received_count += 1
                self._received.append(next_one)
                self.process.deliver_callback(self._read_next_response)

        is_large = not isinstance(response, HeartbeatResponse) or response.assignment is not None
        self._network.send_message(self._link, Direction.TO_WORKER, on_arrival, on_loss=lambda: None, is_large=is_large)

    def end_at_broker(self) -> None:
        """The broker sees an orderly end of the connection (FIN), whether or not the worker has closed it. The broker
        reports the end to the coordinator only if each request has a response, or a response that is held back."""
        if not self.is_open_at_broker:
            return
        self.is_open_at_broker = False
        if self._coordinator.is_up and len(self._in_order) == self._broker_side.held_heartbeat_count():
            self._world.add_record(RecordKind.CLOSED, self._link)
            self._broker_side.notify_groups_of_close()

    def reset_at_broker(self) -> None:
        """The broker sees a reset of the connection (RST). The coordinator receives no report of that, because a reset
        does not show that the process has ended."""
        self.is_open_at_broker = False

    def on_coordinator_crash(self) -> None:
        """The coordinator has crashed: the worker sees a reset, unless that is lost."""
        if self.is_open_at_broker:
            self.is_open_at_broker = False
            self._network.send_message(
                self._link,
                Direction.TO_WORKER,
                lambda: self.break_at_worker("the connection was reset", within_ms=200),
                on_loss=lambda: None,
            )
