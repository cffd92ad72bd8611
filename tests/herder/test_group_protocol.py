"""The setting group.protocol selects the protocol of the group."""

import pytest

from coterie.herder.group_protocol import protocol_of
from coterie.herder.rounds import protocol as rounds_protocol
from coterie.herder.targets import protocol as targets_protocol
from coterie.nouns.membership import GroupProtocolName
from tests.herder.herder_driver import HerderDriver


@pytest.mark.parametrize(
    ("name", "module"),
    [(GroupProtocolName.CLASSIC, rounds_protocol), (GroupProtocolName.CONNECT, targets_protocol)],
)
def test_each_protocol_has_its_module(name: GroupProtocolName, module: object) -> None:
    assert protocol_of(HerderDriver(group_protocol=name).herder) is module
