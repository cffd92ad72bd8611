"""What a group's protocol allows."""

import pytest

from coterie.herder.rounds import spoken
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import COMPATIBLE, EAGER, SESSIONED, STATIC, working
from tests.herder.by_hand import ByHand


def test_before_the_first_round_nothing_is_spoken_and_nothing_waits() -> None:
    herder = ByHand().herder
    assert spoken.setting(herder) is None
    assert not spoken.are_requests_signed(herder)
    assert spoken.why_drain_waits(herder) is None


@pytest.mark.parametrize(
    ("protocol", "setting", "is_signed", "is_drain_announced"),
    [
        (EAGER, "eager", False, False),
        (COMPATIBLE, "compatible", False, False),
        (SESSIONED, "sessioned", True, False),
        (STATIC, "static", True, True),
    ],
)
def test_the_last_round_says_what_is_signed_and_whether_a_drain_can_be_announced(
    protocol: ConnectProtocol, setting: str, is_signed: bool, is_drain_announced: bool
) -> None:
    herder = working(protocol).herder
    assert spoken.setting(herder) == setting
    assert spoken.are_requests_signed(herder) is is_signed
    why = spoken.why_drain_waits(herder)
    assert (why is None) is is_drain_announced
    assert why is None or why.startswith(f"the group uses protocol {setting}, which cannot announce a drain")
