"""The connections between workers and the coordinator of a connect group. As on TCP connections, requests arrive in
order and get their responses in this order, until the connection ends. The end may be seen on one side only, and a
request may arrive long after its sender has closed the connection.

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
from coterie.member.connect.messages import GroupDescriptionRequest
from coterie.member.events import RequestFailed, RequestId, ResponseReceived, Send
from coterie.nouns.connect_groups import HeartbeatResponse


class RepeatedRequestFaults:
    """The faults of requests on all connections, in addition to the faults of links (`LinkFaults`): requests that
    arrive twice."""

    def __init__(self) -> None:
        self.repeat_probability = 0.0
        """The probability that a request is handled a second time, up to 8 s later."""


class SimConnection:
    """One connection of a process to the coordinator."""

    def __init__(
        self,
        world: World,
        network: Network,
        coordinator: SimConnectCoordinator,
        faults: RepeatedRequestFaults,
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
        """Whether the process may still use the connection: it has not closed the connection and has seen no end of
        it."""
        self._unanswered: dict[RequestId, None] = {}
        self._received: deque[tuple[RequestId, member_messages.Response]] = deque()
        """The responses that have arrived in order and that the process has not read; a paused process reads
        nothing."""
        # the way to the broker
        self._sent_count = 0
        self._arrived: dict[int, Callable[[], None]] = {}
        """The messages that have arrived at the broker before an earlier message: by a message's number, the function
        that handles it."""
        self._handled_count = 0
        # the broker's side
        self._broker_side = MemberConnection(coordinator)
        self.is_open_at_broker = True
        """Whether the broker still uses the connection: it has seen no end of it and has not crashed since."""
        self._in_order: deque[int] = deque()
        """The numbers of the requests whose responses were not sent, in the order of the requests."""
        self._ready: dict[int, tuple[RequestId, Response]] = {}
        """By request number, the responses that wait until those to earlier requests are sent."""
        # the way to the worker
        self._response_count = 0
        self._arrived_responses: dict[int, tuple[RequestId, member_messages.Response]] = {}
        self._received_count = 0

    # -- the worker's side ------------------------------------------------------------------------------------------

    def send_request_with_timeout(self, send_effect: Send[member_messages.Request]) -> None:
        """Send a request of the member. The member receives the response or the failure as an event later; if no
        response comes in the request's time limit, the worker closes the connection."""
        self._unanswered[send_effect.id] = None
        late_ms = 0
        if (
            probability := self._network.find_or_add_link_faults(self._link).break_probability
        ) and self._world.draw_bool(probability):
            late_ms = self._world.rng.randint(0, REQUEST_DELAY_MAX_MS)
            self._world.add_record(RecordKind.BROKEN, self._link, late_ms)
            self.break_at_worker_only("the connection broke", within_ms=300)
        self._send_in_order(lambda: self._serve_or_reset(send_effect), late_ms=late_ms)
        self._world.call_after(
            send_effect.request.response_timeout_ms,
            lambda: self.process.call_now_or_on_resume(lambda: self._close_if_unanswered(send_effect)),
        )

    def _close_if_unanswered(self, send_effect: Send[member_messages.Request]) -> None:
        """Close the connection if the process has not read the response to ``send_effect``."""
        if send_effect.id in self._unanswered:
            self.close_and_fail_unanswered("no response")

    def close_and_fail_unanswered(self, reason: str) -> None:
        """Close the connection from the worker's side in an orderly way (FIN). All requests without a response fail
        with ``reason``. Does nothing if the connection has ended at the worker."""
        if self.is_open:
            self._end_at_worker(reason)
            self._send_in_order(self.end_and_report_at_broker)

    def close_with_process(self, *, is_orderly: bool) -> None:
        """Close the connection from the worker's side because the process has ended: with FIN if ``is_orderly``, else
        with RST. The member receives no event."""
        if self.is_open:
            self.is_open = False
            self._send_in_order(self.end_and_report_at_broker if is_orderly else self.reset_at_broker_unreported)

    def break_at_worker_only(self, reason: str, *, within_ms: int) -> None:
        """Let the worker see the end of the connection at a random time in the next ``within_ms``. The broker is not
        informed."""
        in_ms = self._world.rng.randint(1, within_ms)
        self._world.call_after(in_ms, lambda: self.process.call_now_or_on_resume(lambda: self._end_at_worker(reason)))

    def _end_at_worker(self, reason: str) -> None:
        """End the connection on the worker's side only: the worker no longer uses it, and all requests without a
        response fail with ``reason``. Does nothing if the connection has ended there already."""
        if not self.is_open:
            return
        self.is_open = False
        self._received.clear()
        unanswered, self._unanswered = self._unanswered, {}
        for request_id in unanswered:
            self._feed_member(RequestFailed(id=request_id, reason=reason))

    def _send_in_order(self, handle: Callable[[], None], *, late_ms: int = 0) -> None:
        """Send a message to the broker. When it has arrived and all earlier messages of this connection were handled,
        ``handle`` is called. If a message is lost, no later message of this connection is handled either."""
        number, self._sent_count = self._sent_count, self._sent_count + 1

        def process_arrivals_in_order() -> None:
            self._arrived[number] = handle
            while (next_one := self._arrived.pop(self._handled_count, None)) is not None:
                self._handled_count += 1
                next_one()

        self._network.send_message(
            self._link, Direction.TO_BROKER, process_arrivals_in_order, on_loss=lambda: None, late_ms=late_ms
        )

    def _read_next_response(self) -> None:
        """Let the process read the next response: pass it to the member, if the member still waits for it."""
        if self._received:
            request_id, response = self._received.popleft()
            if request_id in self._unanswered:
                del self._unanswered[request_id]
                self._feed_member(ResponseReceived(id=request_id, response=response))

    # -- the broker's side ------------------------------------------------------------------------------------------

    def _serve_or_reset(self, send_effect: Send[member_messages.Request]) -> None:
        """Let the coordinator handle a request that the broker has received. If the connection has ended at the broker,
        or the coordinator is down, reset the connection instead. The request may be handled a second time later
        (`RepeatedRequestFaults`)."""
        if not (self.is_open_at_broker and self._coordinator.is_up):
            self.is_open_at_broker = False
            self.break_at_worker_only("the connection was reset", within_ms=20)
            return
        number = self._broker_side.count_request_and_release_holds()
        request = to_coordinator_request(
            send_effect.request,
            self._coordinator.fresh_reply_to(),
            connection=self._broker_side.number,
            client_id=self._link,
        )
        self._in_order.append(number)
        if isinstance(request, Heartbeat):
            request = self._broker_side.record_heartbeat_and_limit_wait(number, GROUP_ID, request, may_hold=True)
        self._coordinator.serve(
            self._link, request, lambda response: self._send_response_in_order(number, send_effect.id, response)
        )
        if not isinstance(send_effect.request, GroupDescriptionRequest) and self._world.draw_bool(
            self._faults.repeat_probability
        ):
            self._world.call_after(
                self._world.rng.randint(0, REQUEST_DELAY_MAX_MS),
                lambda: self._handle_repeated_request(send_effect.request),
            )

    def _handle_repeated_request(self, request: member_messages.Request) -> None:
        """Let the coordinator, if it runs, handle a request for the second time; this response is dropped."""
        if self._coordinator.is_up:
            self._world.add_record(RecordKind.REPEATED, self._link)
            repeated = to_coordinator_request(
                request,
                self._coordinator.fresh_reply_to(),
                connection=self._broker_side.number,
                client_id=self._link,
            )
            self._coordinator.serve(self._link, repeated, lambda response: None)

    def _send_response_in_order(self, number: int, request_id: RequestId, response: Response) -> None:
        """Send the response of the coordinator to the request with this ``number``, when the responses to all earlier
        requests on this connection were sent."""
        self._broker_side.record_heartbeat_end_and_membership(
            number, response if isinstance(response, HeartbeatResponse) else None
        )
        self._ready[number] = (request_id, response)
        while self._in_order and self._in_order[0] in self._ready:
            self._send_response_if_open(*self._ready.pop(self._in_order.popleft()))

    def _send_response_if_open(self, request_id: RequestId, response: Response) -> None:
        """Send a response to the worker, unless the connection has ended at the broker."""
        if not self.is_open_at_broker:
            return
        number, self._response_count = self._response_count, self._response_count + 1
        worker_response = to_worker_response(response)

        def process_arrivals_in_order() -> None:
            self._arrived_responses[number] = (request_id, worker_response)
            while (next_one := self._arrived_responses.pop(self._received_count, None)) is not None:
                self._received_count += 1
                self._received.append(next_one)
                self.process.call_now_or_on_resume(self._read_next_response)

        is_large = not isinstance(response, HeartbeatResponse) or response.assignment is not None
        self._network.send_message(
            self._link, Direction.TO_WORKER, process_arrivals_in_order, on_loss=lambda: None, is_large=is_large
        )

    def end_and_report_at_broker(self) -> None:
        """End the connection at the broker with an orderly end (FIN), whether or not the worker has closed the
        connection. Does nothing if the connection has ended at the broker. The end is reported to the coordinator if
        two conditions hold: the coordinator runs, and no request of the connection is without a response, except a
        heartbeat whose response is held back."""
        if not self.is_open_at_broker:
            return
        self.is_open_at_broker = False
        if self._coordinator.is_up and len(self._in_order) == self._broker_side.held_heartbeat_count():
            self._world.add_record(RecordKind.CLOSED, self._link)
            self._broker_side.notify_groups_of_close()

    def reset_at_broker_unreported(self) -> None:
        """End the connection at the broker with a reset (RST). Unlike an orderly end, a reset is not reported to the
        coordinator, because it does not show that the process has ended."""
        self.is_open_at_broker = False

    def end_after_coordinator_crash(self) -> None:
        """End the connection at the broker, because the coordinator has crashed. The worker sees a reset a short time
        later, unless the message is lost."""
        if self.is_open_at_broker:
            self.is_open_at_broker = False
            self._network.send_message(
                self._link,
                Direction.TO_WORKER,
                lambda: self.break_at_worker_only("the connection was reset", within_ms=200),
                on_loss=lambda: None,
            )
