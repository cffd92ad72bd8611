"""A fence: what passes before it is closed, and what no longer does."""

import threading

import pytest

from coterie.spark.fence import Fence, FencedError


def test_a_closed_fence_lets_no_effect_begin() -> None:
    fence = Fence()
    with fence.passing():
        pass
    fence.close()
    assert fence.closed
    with pytest.raises(FencedError), fence.passing():
        pytest.fail("the fence is closed")


def test_closing_waits_for_the_effect_under_way_and_shutting_does_not() -> None:
    fence = Fence()
    closing = threading.Thread(target=fence.close)
    with fence.passing():
        fence.shut()
        assert fence.closed
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
    closing.join(10)
    assert not closing.is_alive()


def test_closing_within_a_time_says_whether_an_effect_is_still_under_way() -> None:
    fence = Fence()
    with fence.passing():
        assert not fence.close(within_s=0.01)
        assert fence.closed
    assert fence.close(within_s=0.01)
