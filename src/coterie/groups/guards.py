"""Guards that refuse a request before anything is written: who may ask what of a group."""

from coterie.groups.state import Group, Member
from coterie.groups.turn import Refusal
from coterie.nouns.ids import Generation, MemberId
from coterie.wire.errors import ErrorCode


def check_group(group: Group) -> None:
    if not group.group_id:
        raise Refusal(ErrorCode.invalid_group_id)
    if group.dead:
        raise Refusal(ErrorCode.coordinator_not_available)


def check_member(group: Group, member_id: MemberId) -> Member:
    member = group.members.get(member_id)
    if member is None:
        raise Refusal(ErrorCode.unknown_member_id)
    return member


def check_generation(group: Group, generation: Generation) -> None:
    if generation != group.generation:
        raise Refusal(ErrorCode.illegal_generation)
