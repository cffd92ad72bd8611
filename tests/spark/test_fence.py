"""A fence: effects pass before it is closed, and not afterwards."""

import threading

import pytest

from coterie.spark.fence import Fence, FencedError


def test_no_effect_begins_behind_a_closed_fence() -> None:
    fence = Fence()
    with fence.commit_or_raise_if_closed():
        pass
    fence.close_and_wait()
    assert fence.is_closed
    with pytest.raises(FencedError), fence.commit_or_raise_if_closed():
        pytest.fail("the fence is closed")


def test_closing_waits_for_the_current_effect_and_shutting_does_not() -> None:
    fence = Fence()
    closing = threading.Thread(target=fence.close_and_wait)
    with fence.commit_or_raise_if_closed():
        fence.close_nowait()
        assert fence.is_closed
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
    closing.join(10)
    assert not closing.is_alive()


def test_closing_with_a_time_limit_returns_whether_an_effect_is_still_running() -> None:
    fence = Fence()
    with fence.commit_or_raise_if_closed():
        assert not fence.close_and_wait(timeout_s=0.01)
        assert fence.is_closed
    assert fence.close_and_wait(timeout_s=0.01)
