"""The notation of KIP-415. ``AC0`` is the connector A, ``AT1`` is its task 1; a connector has a name of one letter. In
``W1(delay: 0, assigned: [AC0, AT1], revoked: [])``, `assigned` lists the jobs that the worker W1 owns after the round,
and `revoked` the jobs that W1 must release in the round."""

from collections.abc import Iterable

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs


def parse_jobs(text: str) -> Jobs:
    """The jobs that ``text`` lists in this notation, separated by blanks or commas.

    :raises ValueError: when a word is not a job in this notation.
    """
    jobs: list[Job] = []
    for word in text.replace(",", " ").split():
        name, kind, number = ConnectorName(word[0]), word[1:2], word[2:]
        if kind not in ("C", "T") or not number.isdigit():
            raise ValueError(f"{word!r} is not a job: write AC0 for the connector A, and AT1 for its task 1")
        jobs.append(name if kind == "C" else ConnectorTaskId(name, int(number)))
    return Jobs.of(jobs)


def format_jobs(jobs: Iterable[Job]) -> str:
    """The jobs in the notation of KIP-415, sorted and in brackets: ``[AC0, AT1]``."""
    words = [f"{job.connector}T{job.task}" if isinstance(job, ConnectorTaskId) else f"{job}C0" for job in jobs]
    return f"[{', '.join(sorted(words))}]"


def format_assignment(worker: str, *, delay_ms: int, owned: Jobs, revoked: Jobs) -> str:
    """The line that a transcript has for the assignment of ``worker`` in a round. ``delay_ms`` is the scheduled
    rebalance delay in the assignment, ``owned`` are the jobs that the worker owns after the round, ``revoked`` those
    that it must release."""
    return f"  {worker}(delay: {delay_ms}, assigned: {format_jobs(owned)}, revoked: {format_jobs(revoked)})"
