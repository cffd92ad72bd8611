"""A full disk, as SQLite meets one: the file of the log may have no more pages."""

from coterie.broker.storage.store import Store


def fill_disk(store: Store, *, spare_pages: int = 0) -> None:
    """To be written with `BrokerLog.write`: from now on the file grows by ``spare_pages`` at most."""
    (pages,) = store.database.execute("PRAGMA page_count").fetchone()
    _limit(store, pages + spare_pages)


def make_room(store: Store) -> None:
    """End what `fill_disk` began."""
    _limit(store, 1_000_000)


def _limit(store: Store, pages_max: int) -> None:
    store.database.execute(f"PRAGMA max_page_count = {pages_max}").fetchone()
