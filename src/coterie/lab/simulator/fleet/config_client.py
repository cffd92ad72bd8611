"""A worker's client of the config log: it reads new lines, finds the log's end, and appends lines."""

from collections.abc import Callable, Sequence

from coterie.engine.log import NewLine
from coterie.herder import messages as herder
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.records import RecordKind, weight
from coterie.nouns.ids import ConfigOffset


class ConfigClient:
    def __init__(
        self,
        process: Process,
        cluster: Cluster,
        tell: Callable[[herder.Event], None],
        wake_readers: Callable[[], None],
    ) -> None:
        """``tell`` passes an event to the process's herder; ``wake_readers`` makes every worker read the log."""
        self._process = process
        self._cluster = cluster
        self._tell = tell
        self._wake_readers = wake_readers

    def read(self) -> None:
        lines = self._cluster.config_log.lines[max(self._process.herder.config.offset, 0) :]
        if lines:
            self._tell(herder.ConfigLinesRead(lines=lines))

    def soon(self) -> None:
        """Poll for new lines: a long poll that is repeated until it has a response."""
        process = self._process
        late_ms = self._cluster.reading_ms.get(process.home, 0)
        self._cluster.network.call(
            process.home,
            lambda call: call.answer(None),
            answered=lambda _: process.after(late_ms, self.read) if late_ms else process.soon(self.read),
            failed=lambda _: process.after(500, self.soon),
        )

    def find_end(self, chore: herder.FindConfigEnd) -> None:
        self._ask(
            lambda: self._cluster.config_log.end,
            lambda end: self._tell(herder.ConfigEndFound(purpose=chore.purpose, end=end)),
            lambda _: self._tell(herder.ConfigEndFound(purpose=chore.purpose, end=None)),
        )

    def append(self, chore: herder.AppendConfig) -> None:
        self._ask(
            lambda: self._append(chore.lines),
            lambda end: self._tell(herder.ConfigAppended(purpose=chore.purpose, end=end)),
            lambda reason: self._tell(herder.ConfigAppendFailed(purpose=chore.purpose, reason=reason)),
        )

    def _append(self, lines: Sequence[NewLine]) -> ConfigOffset:
        world = self._process.world
        end = self._cluster.config_log.append(lines, world.now_ms)
        values = weight((line.key, line.value) for line in lines)
        world.record(RecordKind.CONFIG_APPENDED, self._process.name, *values, end)
        return end

    def _ask(
        self,
        serve: Callable[[], ConfigOffset],
        answered: Callable[[ConfigOffset], None],
        failed: Callable[[str], None],
    ) -> None:
        def served(call: Call) -> None:
            before = self._cluster.config_log.end
            call.answer(serve())
            if self._cluster.config_log.end > before:
                self._wake_readers()

        def heard(end: object) -> None:
            assert isinstance(end, int)
            self._process.soon(lambda: answered(ConfigOffset(end)))

        self._cluster.network.call(
            self._process.home,
            served,
            answered=heard,
            failed=lambda reason: self._process.soon(lambda: failed(reason)),
        )
