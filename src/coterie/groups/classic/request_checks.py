"""Checks that refuse a request before any record is written: of the group's id and existence, of the member, and of the
generation."""

from coterie.groups.classic.state import Group, Member
from coterie.nouns.ids import GenerationId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal


def check_group_id(group: Group) -> None:
    """:raises KafkaRefusal: INVALID_GROUP_ID, when the group's id is empty."""
    if not group.group_id:
        raise KafkaRefusal(ErrorCode.invalid_group_id)


def check_group_exists(group: Group) -> None:
    """:raises KafkaRefusal: GROUP_ID_NOT_FOUND, when the group does not exist."""
    if group.is_nonexistent:
        raise KafkaRefusal(ErrorCode.group_id_not_found)


def check_member(group: Group, member_id: MemberId, instance_id: InstanceId | None = None) -> Member:
    """The member with ``member_id``; ``instance_id`` is that of the request, None if it has none.

    :raises KafkaRefusal: UNKNOWN_MEMBER_ID, when there is no such member, or no member with the instance id;
        FENCED_INSTANCE_ID, when another member has the instance id (KIP-345).
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


def check_generation(group: Group, generation: GenerationId) -> None:
    """:raises KafkaRefusal: ILLEGAL_GENERATION, when ``generation`` is not the current one."""
    if generation != group.generation:
        raise KafkaRefusal(ErrorCode.illegal_generation)
