"""Checks that refuse a request before any record is written: group id, group, member, generation."""

from coterie.groups.classic.state import Group, Member
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal


def check_group(group: Group) -> None:
    if not group.group_id:
        raise KafkaRefusal(ErrorCode.invalid_group_id)


def check_is_known(group: Group) -> None:
    if group.is_unheard_of:
        raise KafkaRefusal(ErrorCode.group_id_not_found)


def check_member(group: Group, member_id: MemberId, instance_id: InstanceId | None = None) -> Member:
    """The member of this id.

    :raises KafkaRefusal: when there is no such member, or another member has the instance id (KIP-345).
    """
    if instance_id is not None:
        holder = group.static_members.get(instance_id)
        if holder is None:
            raise KafkaRefusal(ErrorCode.unknown_member_id)
        if holder != member_id:
            raise KafkaRefusal(ErrorCode.fenced_instance_id)
    member = group.members.get(member_id)
    if member is None:
        raise KafkaRefusal(ErrorCode.unknown_member_id)
    return member


def check_generation(group: Group, generation: Generation) -> None:
    if generation != group.generation:
        raise KafkaRefusal(ErrorCode.illegal_generation)
