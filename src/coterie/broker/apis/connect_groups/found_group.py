"""Checks that the group named in a request of connect groups is not a classic group."""

from coterie.broker.context import BrokerContext
from coterie.broker.groups.connect import ConnectGroups
from coterie.nouns.ids import GroupId


def require_connect_groups(broker: BrokerContext) -> ConnectGroups:
    """The connect groups of the broker, which must serve connect groups; only then do the APIs of connect groups
    exist."""
    assert broker.connect_groups is not None
    return broker.connect_groups


def classic_group_error(broker: BrokerContext, group_id: GroupId) -> str | None:
    """The error message for a request of connect groups whose group id belongs to a classic group; the caller must
    refuse the request with GROUP_ID_NOT_FOUND, as in Kafka. None if the id belongs to a connect group, or to no
    group."""
    if not broker.groups.reserves_group_id(group_id) or require_connect_groups(broker).reserves_group_id(group_id):
        return None
    return (
        f"group {group_id} is a classic group: stop its members and delete the group, or use another group.id, or"
        " group.protocol=classic"
    )
