"""The features of a group's protocol: signed requests and announced drains."""

import pytest

from coterie.herder.rounds import protocol_features
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import COMPATIBLE, EAGER, SESSIONED, STATIC, working
from tests.herder.herder_driver import HerderDriver


def test_before_the_first_rebalance_there_is_no_protocol_and_no_reason_to_wait() -> None:
    herder = HerderDriver().herder
    assert protocol_features.protocol_name(herder) is None
    assert not protocol_features.are_requests_signed(herder)
    assert protocol_features.drain_unreportable_reason(herder) is None


@pytest.mark.parametrize(
    ("protocol", "setting", "is_signed", "is_drain_announced"),
    [
        (EAGER, "eager", False, False),
        (COMPATIBLE, "compatible", False, False),
        (SESSIONED, "sessioned", True, False),
        (STATIC, "static", True, True),
    ],
)
def test_the_protocol_of_the_last_rebalance_decides_on_signatures_and_drains(
    protocol: ConnectProtocol, setting: str, is_signed: bool, is_drain_announced: bool
) -> None:
    herder = working(protocol).herder
    assert protocol_features.protocol_name(herder) == setting
    assert protocol_features.are_requests_signed(herder) is is_signed
    why = protocol_features.drain_unreportable_reason(herder)
    assert (why is None) is is_drain_announced
    assert why is None or why.startswith(f"the group uses protocol {setting}, which cannot announce a drain")
