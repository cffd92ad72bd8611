"""A short run of `make fuzz` in every test run."""

from tests.wire.fuzzing import run_in_subprocess

FRAMES = 20_000


def test_damaged_frames_are_read_or_refused_within_little_memory() -> None:
    result = run_in_subprocess(FRAMES, seed=4)
    assert result["findings"] == []
    seen = result["seen"]
    assert isinstance(seen, dict)
    assert sum(seen.values()) == FRAMES
    # Enough frames pass the message check that the parser behind it is tested as well.
    assert seen["request read"] > FRAMES // 20
    assert seen["batch read"] > 0
