"""The config topic that all workers read: durable lines in one order. Each worker has its offset in the log."""

from collections.abc import Mapping, Sequence

from coterie.engine.log import Line, NewLine
from coterie.herder.config_state import ConfigState
from coterie.herder.seams import TaskStart
from coterie.nouns.ids import ConfigOffset, Incarnation
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState


class ConfigLog:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._state = ConfigState()
        self._jobs_at: list[Jobs] = [NO_JOBS]
        self._work_at: list[Mapping[ConnectorTaskId, TaskStart]] = [{}]

    @property
    def end(self) -> ConfigOffset:
        return ConfigOffset(len(self.lines))

    def append(self, lines: Sequence[NewLine], now_ms: int) -> ConfigOffset:
        for new in lines:
            line = Line(partition=0, offset=len(self.lines), timestamp_ms=now_ms, key=new.key, value=new.value)
            self.lines.append(line)
            self._state.apply(line)
            self._jobs_at.append(self._state.jobs())
            self._work_at.append(self._work())
        return self.end

    def _work(self) -> Mapping[ConnectorTaskId, TaskStart]:
        work = {}
        for name in self._state.names():
            connector = self._state.connector(name)
            if connector is None or self._state.target_state(name) is not TargetState.STARTED:
                continue
            for number, config in enumerate(connector.task_configs):
                task = ConnectorTaskId(name, number)
                work[task] = TaskStart(task=task, incarnation=connector.incarnation, config=config)
        return work

    def jobs_at(self, offset: ConfigOffset) -> Jobs:
        """The configured jobs for a worker that has read the log up to ``offset``."""
        return self._jobs_at[max(offset, 0)]

    def work_at(self, offset: ConfigOffset) -> Mapping[ConnectorTaskId, TaskStart]:
        """The tasks that should run, with their configs, for a worker that has read the log up to ``offset``."""
        return self._work_at[max(offset, 0)]

    def names(self) -> list[ConnectorName]:
        return self._state.names()

    def incarnation(self, name: ConnectorName) -> Incarnation | None:
        """The present incarnation of the connector; None if it does not exist."""
        connector = self._state.connector(name)
        return connector.incarnation if connector is not None else None

    def unpublished(self) -> list[ConnectorName]:
        """Connectors whose task configs have not been written for their present config."""
        return [
            name
            for name in self._state.names()
            if (connector := self._state.connector(name)) is not None
            and self._state.target_state(name) is TargetState.STARTED
            and (
                connector.applied_config != connector.config
                or len(connector.task_configs) != int(connector.config["tasks.max"])
            )
        ]
