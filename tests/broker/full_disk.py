"""A simulated full disk: SQLite may add no more pages to the log's file."""

from coterie.broker.storage.store import Store


def fill_disk(store: Store, *, spare_pages: int = 0) -> None:
    """Limit the growth of the file to ``spare_pages``; to be called through `BrokerLog.run_write`."""
    (pages,) = store.database.execute("PRAGMA page_count").fetchone()
    _limit(store, pages + spare_pages)


def lift_limit(store: Store) -> None:
    """Remove the limit of `fill_disk`."""
    _limit(store, 1_000_000)


def _limit(store: Store, pages_max: int) -> None:
    store.database.execute(f"PRAGMA max_page_count = {pages_max}").fetchone()
