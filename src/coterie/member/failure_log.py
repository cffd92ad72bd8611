"""Which failures of a member are written to the process's log, and how often, the same for each group protocol."""

from dataclasses import dataclass, replace

LOG_REPEAT_INTERVAL_MS = 30_000
"""The time after which a failure that continues is logged again."""
FAILURES_MAX = 8
"""How many different failures are stored at once. The number of different messages of a broken network is unbounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecurringFailure:
    """When requests began to fail for one reason, and when this reason was logged last."""

    since_ms: int
    logged_at_ms: int


class FailureLog:
    """The reasons for which a member's requests fail at present. A new one is logged at once, and one with the same
    text again only every :data:`LOG_REPEAT_INTERVAL_MS`. Several failures may alternate, for instance when requests of
    two kinds fail."""

    def __init__(self) -> None:
        self._failures: dict[str, _RecurringFailure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def clear(self) -> None:
        """Forget all failures, because a request has succeeded: the next failure is logged at once."""
        self._failures.clear()

    def add(self, text: str, now_ms: int) -> str | None:
        """Store the failure ``text``. Returns the message to log, with the time for which a repeated failure has
        lasted; None if nothing is to be logged now. If `FAILURES_MAX` other failures are stored, the one that was
        logged longest ago is forgotten."""
        failures = self._failures
        failure = failures.get(text)
        if failure is None:
            if len(failures) == FAILURES_MAX:
                del failures[min(failures, key=lambda known: failures[known].logged_at_ms)]
            failures[text] = _RecurringFailure(since_ms=now_ms, logged_at_ms=now_ms)
            return text
        if now_ms - failure.logged_at_ms < LOG_REPEAT_INTERVAL_MS:
            return None
        failures[text] = replace(failure, logged_at_ms=now_ms)
        return f"{text} (for {(now_ms - failure.since_ms) // 1000} s now; retrying)"
