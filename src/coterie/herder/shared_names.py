"""The leader's warning about workers with the same ``worker.name``.

The group works with such workers, because it distinguishes them by their member ids. But an order that selects a worker
by this name is refused, and messages that contain the name are ambiguous.
"""

from collections.abc import Iterable

from coterie.herder.messages import WriteLogMessage
from coterie.herder.state import Turn
from coterie.nouns.ids import WorkerId


def warn_about_shared_names(turn: Turn, names_and_addresses: Iterable[tuple[str, WorkerId]]) -> None:
    """Log a warning for each name that several workers of the group have, unless a warning names these workers already.

    ``names_and_addresses`` are the ``worker.name`` and the ``host:port`` of each worker that has a name. One worker may
    be several members with the same address: a former member of the worker stays in the group until its session ends.
    """
    addresses_by_name: dict[str, set[WorkerId]] = {}
    for name, address in names_and_addresses:
        addresses_by_name.setdefault(name, set()).add(address)
    warned = turn.herder.warned_addresses_by_name
    shared = {name: frozenset(addresses) for name, addresses in addresses_by_name.items() if len(addresses) > 1}
    for name, addresses in sorted(shared.items()):
        if not addresses <= warned.get(name, frozenset()):
            text = (
                f"The workers {' and '.join(sorted(addresses))} have the same name, worker.name={name}. If all of them "
                "run, give each of them another worker.name and restart it. Until then, name these workers by their "
                "addresses: an order by their name is refused"
            )
            turn.emit(WriteLogMessage(text=text, is_warning=True))
    turn.herder.warned_addresses_by_name = shared
