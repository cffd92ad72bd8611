"""A worker's client of the config log: it reads new lines, finds the log's end, and appends lines."""

from collections.abc import Callable, Sequence

from coterie.engine.log import NewTopicRecord
from coterie.herder import messages as herder
from coterie.lab.simulator.network import NetworkCall
from coterie.lab.simulator.records import RecordKind, count_size_and_checksum
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.nouns.ids import LogPosition

FENCED_RESULT = LogPosition(-1)
"""What an append returns in place of the end offset, if the worker has lost the right to append lines as the leader."""


class ConfigLogClient:
    """Reads the simulated config log, and appends lines to it, for the herder of one process."""

    def __init__(
        self,
        process: WorkerProcess,
        cluster: SharedByWorkers,
        feed_herder: Callable[[herder.Event], None],
        wake_readers: Callable[[], None],
    ) -> None:
        """``feed_herder`` passes an event to the herder of ``process``; ``wake_readers`` lets every process poll the
        log."""
        self._process = process
        self._cluster = cluster
        self._feed_herder = feed_herder
        self._wake_readers = wake_readers
        self._opening = 0
        """The number that `ConfigLog.leader_opening_count` had at this process's last opening of the leader's log; 0 if
        it has not opened the log."""

    def feed_new_lines_to_herder(self) -> None:
        """Pass to the herder all lines of the config log that the herder has not received yet."""
        log = self._cluster.config_log
        lines = log.lines[self._process.herder.config.position :]
        if lines:
            self._feed_herder(herder.ConfigLinesRead(lines=lines, position=log.end_offset))

    def fetch_and_feed_new_lines(self) -> None:
        """Send a fetch to the broker over the worker's link. With the response, and after the read delay of the worker,
        read the new lines. A failed fetch is repeated after 0.5 s."""
        process = self._process
        read_delay_ms = self._cluster.config_read_delay_ms.get(process.service, 0)
        self._cluster.network.send_request(
            process.service,
            lambda call: call.respond(None),
            on_response=lambda _: (
                process.call_after(read_delay_ms, self.feed_new_lines_to_herder)
                if read_delay_ms
                else process.call_now_or_on_resume(self.feed_new_lines_to_herder)
            ),
            on_failure=lambda _: process.call_after(500, self.fetch_and_feed_new_lines),
        )

    def begin_chore(self, chore: herder.FindConfigLogEnd | herder.OpenLeaderLog | herder.AppendConfigLines) -> None:
        """Begin ``chore``, which the herder has ordered; the herder receives the result as an event later."""
        match chore:
            case herder.FindConfigLogEnd():
                self.find_log_end(chore)
            case herder.OpenLeaderLog():
                self.open_leader_log(chore)
            case herder.AppendConfigLines():
                self.append_lines(chore)

    def find_log_end(self, chore: herder.FindConfigLogEnd) -> None:
        """Request the log's end offset from the broker, and pass it to the herder; None if the request fails."""
        self._call_broker(
            lambda: self._cluster.config_log.end_offset,
            lambda end: self._feed_herder(herder.ConfigLogEndLookupEnded(purpose=chore.purpose, end_offset=end)),
            lambda _: self._feed_herder(herder.ConfigLogEndLookupEnded(purpose=chore.purpose, end_offset=None)),
        )

    def open_leader_log(self, chore: herder.OpenLeaderLog) -> None:
        """Take the right to append lines as the leader from all other workers, and report to the herder that the log is
        open, or why that has failed."""

        def open_log() -> LogPosition:
            self._cluster.config_log.leader_opening_count += 1
            return LogPosition(self._cluster.config_log.leader_opening_count)

        def store_opening_and_report(opening: LogPosition) -> None:
            self._opening = opening
            self._feed_herder(herder.LeaderLogOpened(opening_number=chore.opening_number))

        self._call_broker(
            open_log,
            store_opening_and_report,
            lambda reason: self._feed_herder(
                herder.LeaderLogOpenFailed(opening_number=chore.opening_number, reason=reason)
            ),
        )

    def append_lines(self, chore: herder.AppendConfigLines) -> None:
        """Append the lines of ``chore``, and pass the log's new end offset or the failure to the herder. After a
        failure the lines may have been appended, unless the failure says that this worker is fenced: another worker has
        opened the leader's log since."""
        opening = None if chore.leader_log_opening_number is None else self._opening
        leadership, position = self._process.leadership_number, self._process.herder.config.position

        def append() -> LogPosition:
            if opening is not None and opening != self._cluster.config_log.leader_opening_count:
                return FENCED_RESULT
            self._cluster.checker.check_leader_has_read_lines(self._process, position, chore.lines)
            self._cluster.checker.check_leader_appends_in_order(self._process, leadership, chore.lines)
            return self._append_and_record(chore.lines)

        def on_failure(reason: str, *, is_fenced: bool = False) -> None:
            self._feed_herder(
                herder.ConfigLinesAppendFailed(
                    purpose=chore.purpose,
                    reason=reason,
                    leader_log_opening_number=chore.leader_log_opening_number,
                    is_fenced=is_fenced,
                )
            )

        def on_result(end_or_fenced: LogPosition) -> None:
            if end_or_fenced == FENCED_RESULT:
                on_failure("another worker has opened the leader's log", is_fenced=True)
            else:
                self._feed_herder(herder.ConfigLinesAppended(purpose=chore.purpose, end_offset=end_or_fenced))

        self._call_broker(append, on_result, on_failure)

    def _append_and_record(self, lines: Sequence[NewTopicRecord]) -> LogPosition:
        """Append ``lines`` to the config log and record that. Returns the log's new end offset."""
        world = self._process.world
        end = self._cluster.config_log.append(lines, world.now_ms)
        values = count_size_and_checksum((line.key, line.value) for line in lines)
        world.add_record(RecordKind.CONFIG_APPENDED, self._process.name, *values, end)
        return end

    def _call_broker(
        self,
        serve: Callable[[], LogPosition],
        on_result: Callable[[LogPosition], None],
        on_failure: Callable[[str], None],
    ) -> None:
        """Send a request to the broker, where ``serve`` is called. Then, in the process, ``on_result`` is called
        with the result of ``serve``, or ``on_failure`` with a reason. If ``serve`` has appended lines, every process
        polls the log."""

        def serve_and_wake_readers(call: NetworkCall) -> None:
            end_before = self._cluster.config_log.end_offset
            call.respond(serve())
            if self._cluster.config_log.end_offset > end_before:
                self._wake_readers()

        def on_response(end_offset: object) -> None:
            assert isinstance(end_offset, int)
            self._process.call_now_or_on_resume(lambda: on_result(LogPosition(end_offset)))

        self._cluster.network.send_request(
            self._process.service,
            serve_and_wake_readers,
            on_response=on_response,
            on_failure=lambda reason: self._process.call_now_or_on_resume(lambda: on_failure(reason)),
        )
