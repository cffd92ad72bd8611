"""The step functions of the machines as methods of one class. A subclass that overrides the methods sees each machine
before and after each step."""

from coterie.engine.output import Output
from coterie.groups.classic import machine as group_machine
from coterie.groups.classic import messages as group_messages
from coterie.groups.classic.state import Group
from coterie.groups.connect import machine as connect_group_machine
from coterie.groups.connect import messages as connect_group_messages
from coterie.groups.connect.state import Group as ConnectGroup
from coterie.herder import machine as herder_machine
from coterie.herder import messages as herder_messages
from coterie.herder.state import Herder, HerderOutput
from coterie.member.classic import machine as member_machine
from coterie.member.classic import messages as member_messages
from coterie.member.classic.state import Member
from coterie.member.connect import machine as connect_member_machine
from coterie.member.connect import messages as connect_member_messages
from coterie.member.connect.state import Member as ConnectMember


class MachineSteps:
    """The functions that the simulator and the scenarios call for every event of a machine. Each function changes the
    machine's state in place and returns the output of the step."""

    def step_classic_group(
        self, group: Group, event: group_messages.Event, *, now_ms: int
    ) -> Output[group_messages.Record, group_messages.Effect]:
        """Let the coordinator of the classic group ``group`` handle ``event``; returns the records and the effects."""
        return group_machine.step(group, event, now_ms=now_ms)

    def step_classic_member(
        self, member: Member, event: member_messages.Event, *, now_ms: int
    ) -> Output[None, member_messages.Effect]:
        """Let ``member``, a worker's member of a classic group, handle ``event``; returns the effects."""
        return member_machine.step(member, event, now_ms=now_ms)

    def step_connect_group(
        self, group: ConnectGroup, event: connect_group_messages.Event, *, now_ms: int
    ) -> Output[connect_group_messages.Record, connect_group_messages.Effect]:
        """Let the coordinator of the connect group ``group`` handle ``event``; returns the records and the effects."""
        return connect_group_machine.step(group, event, now_ms=now_ms)

    def step_connect_member(
        self, member: ConnectMember, event: connect_member_messages.Event, *, now_ms: int
    ) -> Output[None, connect_member_messages.Effect]:
        """Let ``member``, a worker's member of a connect group, handle ``event``; returns the effects."""
        return connect_member_machine.step(member, event, now_ms=now_ms)

    def step_herder(self, herder: Herder, event: herder_messages.Event, *, now_ms: int) -> HerderOutput:
        """Let a worker's herder handle ``event``; returns the effects."""
        return herder_machine.step(herder, event, now_ms=now_ms)


PLAIN_STEPS = MachineSteps()
"""The step functions of the machines, without an observer of the steps."""
