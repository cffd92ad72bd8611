"""The config topic that all workers read: one durable order of lines, each worker as far along it as it has come."""

from collections.abc import Sequence

from coterie.engine.log import Line, NewLine
from coterie.herder.config_state import ConfigState
from coterie.nouns.ids import ConfigOffset, Incarnation
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs


class ConfigLog:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._state = ConfigState()
        self._jobs_at: list[Jobs] = [NO_JOBS]

    @property
    def end(self) -> ConfigOffset:
        return ConfigOffset(len(self.lines))

    def append(self, lines: Sequence[NewLine], now_ms: int) -> ConfigOffset:
        for new in lines:
            line = Line(partition=0, offset=len(self.lines), timestamp_ms=now_ms, key=new.key, value=new.value)
            self.lines.append(line)
            self._state.apply(line)
            self._jobs_at.append(self._state.jobs())
        return self.end

    def jobs_at(self, offset: ConfigOffset) -> Jobs:
        """What is configured for whoever has read the log up to ``offset``."""
        return self._jobs_at[max(offset, 0)]

    def incarnation(self, name: ConnectorName) -> Incarnation | None:
        """Which life of the connector this is; None when there is no such connector."""
        connector = self._state.connector(name)
        return connector.incarnation if connector is not None else None

    def unpublished(self) -> list[ConnectorName]:
        """Connectors whose tasks are not those of their config yet."""
        return [
            name
            for name in self._state.names()
            if (connector := self._state.connector(name)) is not None
            and (
                connector.applied_config != connector.config
                or len(connector.task_configs) != int(connector.config["tasks.max"])
            )
        ]
