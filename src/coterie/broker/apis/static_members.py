"""Static members (KIP-345) as requests tell of them."""

from coterie.broker.node import ApiRequest
from coterie.nouns.ids import InstanceId


def instance_id_of(request: ApiRequest) -> InstanceId | None:
    """The member's `group.instance.id`; None for a dynamic member, and for every one in versions before KIP-345."""
    instance_id = request.told("group_instance_id", None)
    return None if instance_id is None else InstanceId(instance_id)
