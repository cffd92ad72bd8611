"""A worker's client of the config log: it reads new lines, finds the log's end, and appends lines."""

from collections.abc import Callable, Sequence

from coterie.engine.log import NewTopicRecord
from coterie.herder import messages as herder
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.records import RecordKind, size_and_checksum
from coterie.nouns.ids import ConfigOffset


class ConfigClient:
    """The client of the config log in one process."""

    def __init__(
        self,
        process: Process,
        cluster: Cluster,
        feed_herder: Callable[[herder.Event], None],
        wake_readers: Callable[[], None],
    ) -> None:
        """``feed_herder`` passes an event to the process's herder; ``wake_readers`` makes every worker poll the log."""
        self._process = process
        self._cluster = cluster
        self._feed_herder = feed_herder
        self._wake_readers = wake_readers

    def read(self) -> None:
        """Pass all lines that the herder has not received to the herder."""
        lines = self._cluster.config_log.lines[max(self._process.herder.config.offset, 0) :]
        if lines:
            self._feed_herder(herder.ConfigLinesRead(lines=lines))

    def poll(self) -> None:
        """Read the log after a round trip over the worker's link, and after the worker's read delay. A failed poll is
        repeated."""
        process = self._process
        late_ms = self._cluster.config_read_delay_ms.get(process.service, 0)
        self._cluster.network.call(
            process.service,
            lambda call: call.answer(None),
            answered=lambda _: process.after(late_ms, self.read) if late_ms else process.deliver(self.read),
            failed=lambda _: process.after(500, self.poll),
        )

    def find_end(self, chore: herder.FindConfigEnd) -> None:
        """Pass the log's end offset to the herder; None if the request failed."""
        self._ask(
            lambda: self._cluster.config_log.end,
            lambda end: self._feed_herder(herder.ConfigEndFound(purpose=chore.purpose, end_offset=end)),
            lambda _: self._feed_herder(herder.ConfigEndFound(purpose=chore.purpose, end_offset=None)),
        )

    def append(self, chore: herder.AppendConfig) -> None:
        """Append lines, and pass the log's end offset or the failure to the herder. After a failure the lines may have
        been appended."""
        self._ask(
            lambda: self._append(chore.lines),
            lambda end: self._feed_herder(herder.ConfigAppended(purpose=chore.purpose, end_offset=end)),
            lambda reason: self._feed_herder(herder.ConfigAppendFailed(purpose=chore.purpose, reason=reason)),
        )

    def _append(self, lines: Sequence[NewTopicRecord]) -> ConfigOffset:
        """Append ``lines`` and record this. Returns the log's end offset."""
        world = self._process.world
        end = self._cluster.config_log.append(lines, world.now_ms)
        values = size_and_checksum((line.key, line.value) for line in lines)
        world.record(RecordKind.CONFIG_APPENDED, self._process.name, *values, end)
        return end

    def _ask(
        self,
        serve: Callable[[], ConfigOffset],
        answered: Callable[[ConfigOffset], None],
        failed: Callable[[str], None],
    ) -> None:
        """Call ``serve`` at the broker, and ``answered`` with its result or ``failed`` with the reason at the process.
        Every worker polls if the log has grown."""

        def served(call: Call) -> None:
            before = self._cluster.config_log.end
            call.answer(serve())
            if self._cluster.config_log.end > before:
                self._wake_readers()

        def heard(end: object) -> None:
            assert isinstance(end, int)
            self._process.deliver(lambda: answered(ConfigOffset(end)))

        self._cluster.network.call(
            self._process.service,
            served,
            answered=heard,
            failed=lambda reason: self._process.deliver(lambda: failed(reason)),
        )
