"""How long an answer of the group's coordinator proves a worker's place: the one number that safety rests on."""


def lease_ms(session_timeout_ms: int) -> int:
    """Two thirds of the session, counted from the *sending* of what was answered.

    Others get the work of a silent worker when its session is over; the last third is for stopping it here before. The
    member gives its place up and the herder hurries its stops by this same number, so they never disagree on when.
    """
    return session_timeout_ms * 2 // 3
