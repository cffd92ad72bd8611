"""A little of `make fuzz` in every run."""

from tests.wire.fuzzing import run_apart

FRAMES = 20_000


def test_damaged_frames_are_read_or_refused_within_little_memory() -> None:
    result = run_apart(FRAMES, seed=4)
    assert result["findings"] == []
    seen = result["seen"]
    assert isinstance(seen, dict)
    assert sum(seen.values()) == FRAMES
    # Enough of them get through the guard that what comes behind it is tried as well.
    assert seen["request read"] > FRAMES // 20
    assert seen["batch read"] > 0
