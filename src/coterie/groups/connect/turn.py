"""The working set of one step."""

from dataclasses import replace

from coterie.groups.connect.messages import (
    NO_EPOCH,
    NO_LEADER_EPOCH,
    Effect,
    GroupRecord,
    Record,
    Removal,
    Response,
    TimerKey,
)
from coterie.groups.connect.state import Group, apply_record
from coterie.groups.effects import CancelTimer, Reply, SetTimer
from coterie.nouns.ids import GroupEpoch, LeaderEpoch, MemberId, ReplyTo


class Turn:
    """The working set of one step: the group, the time, and the records and effects of the step so far.

    The group record (`GroupRecord`) is written once, by :meth:`write_group_record_if_changed`, after all records of
    configured jobs, targets, and members that join or leave: a crash may cut the records of a step anywhere, and its
    absence shows that these were not written completely. Only current assignments and session timeouts, which the
    response of the step reports, may follow it.
    """

    def __init__(self, group: Group, now_ms: int) -> None:
        self.group = group
        self.now_ms = now_ms
        self.records: list[Record] = []
        self.effects: list[Effect] = []
        self.removals: list[Removal] = []
        self._changes: dict[str, object] = {}
        """The fields of the group record that this step changes."""

    # -- records ------------------------------------------------------------------------------------------------------

    def write(self, record: Record) -> None:
        """Add a record to the step's output and apply it to the group at once."""
        apply_record(self.group, record)  # at once: the rest of this step works with the new state
        self.records.append(record)

    @property
    def has_records_or_pending_changes(self) -> bool:
        """Whether this step has written a record, or changes the group record."""
        return bool(self.records or self._changes)

    @property
    def new_group_epoch(self) -> GroupEpoch:
        """The group epoch with the changes of this step so far."""
        return self._changes.get("group_epoch", self.group.group_epoch)  # type: ignore[return-value]

    @property
    def new_leader(self) -> MemberId | None:
        """The leader with the changes of this step so far; None if the group has none."""
        return self._changes.get("leader", self.group.leader)  # type: ignore[return-value]

    @property
    def new_leader_epoch(self) -> LeaderEpoch:
        """The leader epoch with the changes of this step so far."""
        return self._changes.get("leader_epoch", self.group.leader_epoch)  # type: ignore[return-value]

    def bump_group_epoch(self) -> None:
        """Increase the group epoch by 1, also if called several times in this step: the metadata have changed, and a
        target assignment has to be computed."""
        self._changes["group_epoch"] = GroupEpoch(self.group.group_epoch + 1)

    def change_group_record(self, **changes: object) -> None:
        """Collect new values of fields of the group record. The group has the old values until
        :meth:`write_group_record_if_changed` writes the record with all changes, late in this step."""
        self._changes |= changes

    def appoint_leader_if_none_present(self) -> None:
        """Appoint a leader if the group has none, or if the leader has left, also for a short time: the present member
        that joined first. Without a present member, the group has no leader."""
        group = self.group
        leader = self.new_leader
        if leader in group.members and not group.has_left_briefly(leader):
            return
        present = (
            one.member_id for one in group.members_in_joining_order() if not group.has_left_briefly(one.member_id)
        )
        successor = next(present, None)
        if successor != leader:
            self.change_group_record(leader=successor, leader_epoch=LeaderEpoch(self.new_leader_epoch + 1))

    def write_group_record_if_changed(self) -> None:
        """Write the group record, if this step changes it. If it is the last record already, it is replaced by one with
        all changes."""
        if not self._changes:
            return
        if self.records and isinstance(self.records[-1], GroupRecord):
            self.records.pop()
        before = self.group.metadata or GroupRecord(
            group_epoch=NO_EPOCH, assignment_epoch=NO_EPOCH, leader=None, leader_epoch=NO_LEADER_EPOCH
        )
        self.write(replace(before, **self._changes))  # type: ignore[arg-type]
        self._changes = {}

    # -- effects ------------------------------------------------------------------------------------------------------

    def reply(self, to: ReplyTo, response: Response) -> None:
        """Add the response to the request ``to``."""
        self.effects.append(Reply(to=to, response=response))

    def set_timer(self, key: TimerKey, at_ms: int) -> None:
        """Set the timer ``key`` to the time ``at_ms``; if it is set already, move it."""
        self.group.deadlines[key] = at_ms
        self.effects.append(SetTimer(key=key, at_ms=at_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel the timer ``key``, if it is set."""
        if self.group.deadlines.pop(key, None) is not None:
            self.effects.append(CancelTimer(key=key))
