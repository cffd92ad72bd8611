"""Waits that grow with each failure."""


def doubled_delay_ms(first_ms: int, doublings: int, max_ms: int) -> int:
    """``first_ms``, doubled ``doublings`` times, but at most ``max_ms``."""
    # A power of two with thousands of digits would be computed only to be cut.
    return min(first_ms << min(doublings, 30), max_ms)
