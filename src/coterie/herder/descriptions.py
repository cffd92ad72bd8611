"""Descriptions of connectors, from the state of the config log and of the status log."""

from coterie.herder.config_state import ConfigState
from coterie.herder.requests.reads import ConnectorInfo, ConnectorStatus
from coterie.herder.requests.refusals import RequestRefused, unknown_connector_refusal
from coterie.herder.status_records import StatusState
from coterie.nouns.jobs import ConnectorName


def describe_connector(config: ConfigState, name: ConnectorName) -> ConnectorInfo | RequestRefused:
    """The connector's config and tasks; a refusal when there is no such connector."""
    connector = config.connector(name)
    if connector is None:
        return unknown_connector_refusal(name)
    return ConnectorInfo(
        connector=name,
        config=connector.config,
        tasks=config.committed_tasks(name),
        config_version=connector.config_line_offset,
    )


def connector_status(config: ConfigState, statuses: StatusState, name: ConnectorName) -> ConnectorStatus | None:
    """The statuses of a connector and its tasks; None when there is no such connector, or when it has no status yet."""
    connector = config.connector(name)
    status = statuses.get(name)
    if connector is None or status is None:
        return None
    statuses_by_task = ((task, statuses.get(task)) for task in config.committed_tasks(name))
    return ConnectorStatus(
        connector=name,
        status=status,
        tasks=tuple((task, status) for task, status in statuses_by_task if status is not None),
        config=connector.config,
    )
