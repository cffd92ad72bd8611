"""The demo's output: progress bars and a table on a terminal, plain lines elsewhere."""

import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

_PROGRESS_LINE_INTERVAL_S = 5.0
"""How often the progress is printed as a line where there are no bars."""


class Display:
    """Shows progress bars and a table of the workers' tasks; above the bars, lines that stay on the screen. Each bar
    has a name and shows a count: :meth:`update` sets the counts by the names of the bars, and the tasks of each worker.

    If standard output is not a terminal, or in CI, all output is lines, and progress is printed every few seconds."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        """``totals`` are the names of the bars, each with the count at which the bar is full."""
        self._console = Console(highlight=False, soft_wrap=True, emoji=False)
        self._started_at_s = time.monotonic()
        self._totals = totals
        self._progress = Progress(
            TextColumn("{task.description:>16}"), BarColumn(bar_width=40), MofNCompleteColumn(), console=self._console
        )
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=total) for name, total in totals.items()
        }
        self._owners_table = Table(box=None)
        self._live: Live | None = None
        if self._console.is_terminal and not os.environ.get("CI"):
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True)
        self._progress_line_at_s = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display was created."""
        return time.monotonic() - self._started_at_s

    def print_line(self, text: str) -> None:
        """Print ``text`` as a line that stays on the screen, after the seconds since the display was created."""
        self._console.print(f"{self.elapsed_s:6.1f} s  {text}", markup=False)

    def update(self, counts: Mapping[str, int], tasks_by_worker: Mapping[str, Sequence[str]]) -> None:
        """Update each bar to its count in ``counts``, and the tasks of each worker (``tasks_by_worker``).

        If all output is lines (no terminal, or CI), print the progress as one line instead, at most once every
        ``_PROGRESS_LINE_INTERVAL_S``.
        """
        for name, count in counts.items():
            self._progress.update(self._bars[name], completed=count)
        table = Table(box=None, header_style="bold", title_justify="left")
        table.add_column("worker")
        table.add_column("owns")
        for worker, tasks in tasks_by_worker.items():
            table.add_row(worker, "  ".join(tasks) or "-")
        self._owners_table = table
        if self._live is None and time.monotonic() - self._progress_line_at_s >= _PROGRESS_LINE_INTERVAL_S:
            self._progress_line_at_s = time.monotonic()
            bars = ", ".join(f"{name} {count:,}/{self._totals[name]:,}" for name, count in counts.items())
            self.print_line(
                f"{bars} | " + ", ".join(f"{worker}: {len(tasks)}" for worker, tasks in tasks_by_worker.items())
            )

    def _render(self) -> Group:
        return Group(self._progress.get_renderable(), self._owners_table)
