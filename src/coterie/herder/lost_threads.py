"""Threads of this worker that hang in a plug-in: their calls have exceeded their time limits, and nothing can end them
except the end of the process.

When there are more than ``plugin.lost.threads.max``, the worker is unhealthy until its process ends, and takes no new
jobs. It keeps the jobs that it has started: other workers would only lose threads in the same plug-ins. It reports
these jobs to the group as its claims (KIP-987), so that other workers receive all further jobs, also those that this
worker has not started yet. While no worker may run a job, the job is UNASSIGNED, with the reason. A protocol older than
``static`` has no claims: if its leader assigns a new job to this worker, the job is UNASSIGNED, too.
"""

from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import WriteLogMessage
from coterie.herder.seams import PluginThreadsLost
from coterie.herder.state import Turn


def on_plugin_threads_lost(turn: Turn, event: PluginThreadsLost) -> None:
    """Store the present number of lost threads. If there are too many, start no new jobs until the process ends, report
    the change to the group, and log an error."""
    lifecycle, lost_threads_max = turn.herder.lifecycle, turn.herder.settings.lost_threads_max
    lifecycle.lost_threads = event.lost_threads_total
    if event.lost_threads_total > lost_threads_max and lifecycle.no_new_jobs_reason is None:
        lifecycle.no_new_jobs_reason = (
            f"{turn.herder.settings.display_name} starts no new jobs until it is restarted: "
            f"{event.lost_threads_total} of its threads hang in plug-ins, more than "
            f"plugin.lost.threads.max={lost_threads_max}. The worker's log names these threads"
        )
        protocol_of(turn.herder).store_worker_state_change(
            turn, "too many threads hang in plug-ins: this worker starts no new jobs"
        )
        turn.emit(WriteLogMessage(text=lifecycle.no_new_jobs_reason, is_error=True))
