"""What a group's protocol allows."""

import pytest

from coterie.herder.rounds import spoken
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import STATIC, working
from tests.herder.by_hand import ByHand


def test_before_the_first_round_nothing_is_spoken_and_nothing_waits() -> None:
    herder = ByHand().herder
    assert spoken.setting(herder) is None
    assert not spoken.are_requests_signed(herder)
    assert spoken.why_drain_waits(herder) is None


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_the_last_round_says_what_is_signed_and_whether_a_drain_can_be_announced(protocol: ConnectProtocol) -> None:
    herder = working(protocol).herder
    assert spoken.setting(herder) == protocol.setting
    assert spoken.are_requests_signed(herder) is (protocol >= ConnectProtocol.SESSIONED)
    why = spoken.why_drain_waits(herder)
    assert (why is None) is (protocol is STATIC)
    assert why is None or why.startswith(f"the group speaks {protocol.setting}, which has no word for a drain")
