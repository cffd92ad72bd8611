"""The faults of clients, and the operators' requests about their group."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from coterie.groups.classic.messages import LeaveGroup, LeavingMember, ReplyTo, Request
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicDeleted,
    TopicPartition,
)
from coterie.lab.simulator.clients.client import Client
from coterie.lab.simulator.clients.play import (
    REQUEST_DELAY_MAX_MS,
    REQUESTED_RETENTION_MS,
    SUBSCRIBED_PARTITIONS,
    SUBSCRIBED_TOPIC,
    UNSUBSCRIBED_PARTITION,
    UNSUBSCRIBED_TOPIC,
    SharedByClients,
)
from coterie.lab.simulator.faults import FaultInjector
from coterie.lab.simulator.infrastructure_faults import InfrastructureFaults
from coterie.lab.simulator.records import RecordKind, RecordValue
from coterie.lab.simulator.sim_process import newest_process
from coterie.nouns.ids import GenerationId, InstanceId, MemberId

CLIENT_NAMES = ("c1", "c2", "c3", "c4")
"""The names of the clients; a seed has the first few of them."""
OPERATOR_NAME = "operator"
"""The name under which operators' requests are recorded, and the name of their link."""
PROTOCOL_LISTS = (("range", "sticky"), ("sticky", "range"), ("range", "sticky", "own"))
"""The lists of protocols that clients offer. All lists contain the first two protocols: after a load the coordinator
knows only the group's selected protocol for each member, so it would refuse a client without this protocol until all
other members have rejoined, as Kafka does."""


class ClientsFaults(FaultInjector[Client]):
    """Starts the clients, and injects the faults and sends the operators' requests of the simulation with one seed. At
    the end of the faults the paused clients resume, missing clients start unless they were killed permanently, and the
    coordinator crashes once more."""

    def __init__(self, play: SharedByClients) -> None:
        names = CLIENT_NAMES[: play.world.rng.randint(1, len(CLIENT_NAMES))]
        super().__init__(
            play.world, InfrastructureFaults(play.world, play.network, play.coordinator, (*names, OPERATOR_NAME)), names
        )
        self._play = play
        self._static_clients = [name for name in names if self._rng.random() < 0.6]
        self._protocols_by_client = {name: self._rng.choice(PROTOCOL_LISTS) for name in names}
        self._copy_numbers: Iterator[int] = count(2)
        self._no_start_before_ms = 0
        """Before this time no client starts, because all were killed together."""
        self._set_faults_and_choose_interval(
            {
                self._pause_random_process: 4,
                self._kill_and_restart_random_process: 4,
                self._stop_and_restart_random_client: 4,
                self.kill_random_process_permanently: 1,
                self._start_second_process: 2,
                self._choose_protocols_of_next_process: 1,
                self._kill_and_restart_all_clients: 1,
                self._remove_static_member: 1,
                self._delete_group: 1,
                self._delete_offsets: 1,
                self._report_topic_deletion: 1,
                self._commit_as_non_member: 2,
                self._fetch_all_offsets: 1,
            },
            mean_intervals_ms=(1_500, 4_000, 10_000),
        )

    def schedule_starts_and_faults(self) -> None:
        """Schedule the start of each client, in the next 4 s, and the first fault."""
        for name in self._services:
            self._world.call_after(self._rng.randint(0, 4_000), partial(self.start_service_if_missing, name))
        self._schedule_next_fault()

    def end_process_faults(self) -> None:
        """Resume paused clients, start a process of each client that has none, except those in ``_never_restarted``,
        and crash the coordinator once more."""
        self._no_start_before_ms = 0
        for client in list(self.live_processes.values()):
            self._resume_process_if_paused(client)
        self.start_missing_services()
        self._infrastructure_faults.crash_and_restart_coordinator()

    # -- clients ------------------------------------------------------------------------------------------------------

    def start_service_if_missing(self, service: str) -> None:
        """Start a process of the client ``service``, unless one runs or ``service`` is in ``_never_restarted``; later,
        if no client may start yet because all were killed together."""
        wait_ms = self._no_start_before_ms - self._world.now_ms
        if wait_ms > 0:
            self._world.call_after(wait_ms, partial(self.start_service_if_missing, service))
        elif service not in self._never_restarted and newest_process(self.live_processes, service) is None:
            self._start_process(service, service)

    def _start_process(self, name: str, service: str) -> None:
        """Start a process with the name ``name`` for the client ``service``."""
        instance_id = InstanceId(f"place-{service}") if service in self._static_clients else None
        Client(
            self._play,
            self.live_processes,
            name,
            service=service,
            instance_id=instance_id,
            protocols=self._protocols_by_client[service],
        )

    def _schedule_restart(self, service: str) -> None:
        self._world.call_after(
            self._rng.choice((200, 1_000, 4_000, 9_000, 20_000)), partial(self.start_service_if_missing, service)
        )

    def _stop_and_restart_random_client(self) -> None:
        """Stop a random client cleanly, if it is not paused; it starts again some time later."""
        client = self._random_process()
        if client is not None and not client.is_paused:
            client.leave_if_dynamic_and_end()
            self._schedule_restart(client.service)

    def _start_second_process(self) -> None:
        """Start a second process of a random client, if the client is static: the second process must fence the first
        one."""
        client = self._random_process()
        if client is not None and client.instance_id is not None:
            self._start_process(f"{client.service}-copy{next(self._copy_numbers)}", client.service)

    def _choose_protocols_of_next_process(self) -> None:
        """Choose the list of protocols that the next process of a random client offers."""
        self._protocols_by_client[self._rng.choice(self._services)] = self._rng.choice(PROTOCOL_LISTS)

    def _kill_and_restart_all_clients(self) -> None:
        """Kill all clients; they start again after 10 s or after 60 s. In 60 s the offsets expire."""
        self._no_start_before_ms = self._world.now_ms + self._rng.choice((10_000, 60_000))
        for name in sorted(self.live_processes):
            self.live_processes[name].kill(RecordKind.ALL_KILLED)
        self.start_missing_services()

    # -- operators ----------------------------------------------------------------------------------------------------

    def _send_operator_request(
        self, recorded_values: tuple[RecordValue, ...], make_request: Callable[[ReplyTo], Request]
    ) -> None:
        """Record an operator's request with ``recorded_values``, and send it to the coordinator. Its response is
        ignored, and a failed request is not repeated."""
        self._world.add_record(RecordKind.REQUESTED, OPERATOR_NAME, *recorded_values)
        self._play.network.send_request(
            OPERATOR_NAME,
            lambda call: self._play.coordinator.serve_or_fail_call(call, make_request),
            on_response=lambda _: None,
            on_failure=lambda _: None,
            late_max_if_broken_ms=REQUEST_DELAY_MAX_MS,
        )

    def _remove_static_member(self) -> None:
        """Request to remove a random client from the group by its instance id alone. The coordinator refuses this if
        the client is not a static member."""
        name = self._rng.choice(self._services)
        leaving_member = LeavingMember(member_id=MemberId(""), instance_id=InstanceId(f"place-{name}"))
        self._send_operator_request(
            ("remove", leaving_member.instance_id),
            lambda reply_to: LeaveGroup(reply_to=reply_to, members=(leaving_member,)),
        )

    def _delete_group(self) -> None:
        """Request to delete the group. The coordinator refuses this while the group has members."""
        self._send_operator_request(("delete group",), lambda reply_to: DeleteGroup(reply_to=reply_to))

    def _delete_offsets(self) -> None:
        """Request to delete the offset of a random partition that members read, and that of
        `UNSUBSCRIBED_PARTITION`."""
        partitions: tuple[TopicPartition, ...] = (self._rng.choice(SUBSCRIBED_PARTITIONS), UNSUBSCRIBED_PARTITION)
        self._send_operator_request(
            ("delete offsets", partitions[0].partition),
            lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=partitions),
        )

    def _report_topic_deletion(self) -> None:
        """Report to the coordinator, if it runs, that one of the two topics was deleted."""
        if self._play.coordinator.is_up:
            topic = self._rng.choice((SUBSCRIBED_TOPIC, UNSUBSCRIBED_TOPIC))
            self._world.add_record(RecordKind.TOPIC_DELETED, topic)
            self._play.coordinator.feed_event(TopicDeleted(topic=topic))

    def _commit_as_non_member(self) -> None:
        """Commit an offset of a random partition as a client that is not a member, like a tool that resets offsets, or
        a consumer that assigns its partitions itself."""
        partition = self._rng.choice((*SUBSCRIBED_PARTITIONS, UNSUBSCRIBED_PARTITION))
        offset = self._play.next_offset_to_commit(partition)
        retention_ms = self._rng.choice((None, REQUESTED_RETENTION_MS))
        self._send_operator_request(
            ("commit", partition.topic, partition.partition),
            lambda reply_to: OffsetCommit(
                reply_to=reply_to,
                member_id=MemberId(""),
                instance_id=None,
                generation=GenerationId(-1),
                retention_ms=retention_ms,
                offsets=(offset,),
            ),
        )

    def _fetch_all_offsets(self) -> None:
        """Fetch all offsets of the group."""
        self._send_operator_request(
            ("fetch offsets",), lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=None)
        )
