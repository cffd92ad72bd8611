"""Text that every encoder accepts."""


def without_lone_surrogates(text: str) -> str:
    """``text`` with U+FFFD in place of each half of a surrogate pair that stands alone: no encoder accepts such a half.
    Plug-ins and other software return such texts, for example a text that was cut inside a pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
