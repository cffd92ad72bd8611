"""Threads of this worker that hang in a plug-in: their calls have exceeded their time limits, and nothing can end them
except the end of the process."""

from coterie.herder.seams import PluginThreadsLost
from coterie.herder.state import Turn


def on_lost(turn: Turn, event: PluginThreadsLost) -> None:
    """Store the present number of lost threads."""
    turn.herder.lifecycle.lost_threads = event.count
