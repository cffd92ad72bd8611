"""The lines of the status topic, in Kafka Connect's JSON, and the topic's state: the status of each job, and the active
topics of each connector (KIP-558)."""

import json
from dataclasses import dataclass, field

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder.config_records import encode_json
from coterie.nouns.ids import GenerationId, WorkerId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.states import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A status of a job, as a worker wrote it."""

    state: JobState
    worker_id: WorkerId
    generation: GenerationId
    """The group's generation when the status was written; in a connect group, the member epoch of the writer."""
    trace: str | None = field(default=None, repr=False)
    """The error of a job, or the reason for its state. Left out of ``repr``, because it may quote a config."""
    version: str | None = None
    """The version of the plug-in (Connect 4.1, KIP-891); None when the line contains none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTopic:
    """A topic that a connector has read or written (KIP-558)."""

    connector: ConnectorName
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTopicUse:
    """The first known use of an active topic."""

    task_number: int
    """The number of the task that was the first to read or write the topic."""
    discovered_at_ms: int
    """When the use was found, in milliseconds since the Unix epoch."""


def status_key_of_job(job: Job) -> bytes:
    """The key of the job's status in the status topic, as in Connect."""
    kind = "task" if isinstance(job, ConnectorTaskId) else "connector"
    return f"status-{kind}-{job}".encode()


def status_line_of_job(job: Job, status: Status | None) -> NewTopicRecord:
    """The line with the ``status`` of ``job``; a tombstone if ``status`` is None or DESTROYED."""
    if status is None or status.state is JobState.DESTROYED:
        return NewTopicRecord(key=status_key_of_job(job), value=None)
    fields = {
        "state": status.state.value,
        "trace": status.trace,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "version": status.version,
    }
    return NewTopicRecord(key=status_key_of_job(job), value=encode_json(fields))


def active_topic_line(active_topic: ActiveTopic, use: FirstTopicUse | None) -> NewTopicRecord:
    """The line with the ``use`` of ``active_topic``, as Connect writes it; a tombstone if ``use`` is None."""
    key = f"status-topic-{active_topic.topic}:connector-{active_topic.connector}".encode()
    if use is None:
        return NewTopicRecord(key=key, value=None)
    fields = {
        "name": active_topic.topic,
        "connector": active_topic.connector,
        "task": use.task_number,
        "discoverTimestamp": use.discovered_at_ms,
    }
    return NewTopicRecord(key=key, value=encode_json({"topic": fields}))


def active_topic_of_key(key: bytes | None) -> ActiveTopic | None:
    """The active topic of a line's key; None for keys of other kinds."""
    name = _decode_key(key)
    # The name of a topic contains no colon; that of a connector may.
    topic, separator, connector = name.removeprefix("status-topic-").partition(":connector-")
    if not name.startswith("status-topic-") or not (topic and separator and connector):
        return None
    return ActiveTopic(connector=ConnectorName(connector), topic=topic)


def job_of_key(key: bytes | None) -> Job | None:
    """The job of a line's key; None for keys of other kinds, for example of active topics."""
    name = _decode_key(key)
    if name.startswith("status-connector-"):
        return ConnectorName(name.removeprefix("status-connector-"))
    if name.startswith("status-task-"):
        try:
            return ConnectorTaskId.parse(name.removeprefix("status-task-"))
        except ValueError:
            return None
    return None


def parse_status(value: bytes) -> Status | None:
    """The status in a line's value; None when the value contains no valid status, for example an unknown state."""
    try:
        body = json.loads(value)
        state, worker_id, generation = body["state"], body["worker_id"], body["generation"]
        trace, version = body.get("trace"), body.get("version")
        if not (isinstance(worker_id, str) and isinstance(generation, int)):
            return None
        return Status(
            state=JobState(state),
            worker_id=WorkerId(worker_id),
            generation=GenerationId(generation),
            trace=trace if isinstance(trace, str) else None,
            version=version if isinstance(version, str) else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class StatusState:
    """The last status of each job, and the active topics, up to the line that was read last. Only :meth:`apply` changes
    it."""

    def __init__(self) -> None:
        self._statuses: dict[Job, Status] = {}
        self._topics: dict[ConnectorName, set[str]] = {}

    def apply(self, line: TopicRecord) -> None:
        """Apply one line of the status topic. Lines of other kinds are ignored, and so is a late UNASSIGNED of a former
        owner. No line raises an exception."""
        if (active_topic := active_topic_of_key(line.key)) is not None:
            self._apply_topic(active_topic, is_removed=line.value is None)
            return
        job = job_of_key(line.key)
        if job is None:
            return
        if line.value is None:
            self._statuses.pop(job, None)
            return
        status = parse_status(line.value)
        if status is not None and not _is_stale_unassigned(self._statuses.get(job), status):
            self._statuses[job] = status

    def _apply_topic(self, active_topic: ActiveTopic, *, is_removed: bool) -> None:
        topics = self._topics.setdefault(active_topic.connector, set())
        if is_removed:
            topics.discard(active_topic.topic)
        else:
            topics.add(active_topic.topic)
        if not topics:
            del self._topics[active_topic.connector]

    def active_topics(self, connector: ConnectorName) -> frozenset[str]:
        """The active topics of the connector, also of one that is not configured any more."""
        return frozenset(self._topics.get(connector, ()))

    def connectors_with_topics(self) -> frozenset[ConnectorName]:
        """The connectors that have active topics, also those that are not configured any more."""
        return frozenset(self._topics)

    def get(self, job: Job) -> Status | None:
        """The last status of the job; None when it has none."""
        return self._statuses.get(job)

    def jobs_with_status(self) -> Jobs:
        """The jobs that have a status, also those that are not configured any more."""
        return Jobs.of(self._statuses)

    def may_overwrite(self, job: Job, status: Status) -> bool:
        """Whether the stored status of ``job`` is not from another worker in a later generation (Connect's
        ``putSafe``); True if no status is stored. Called before FAILED, UNASSIGNED and retried statuses are written."""
        stored = self._statuses.get(job)
        return stored is None or stored.worker_id == status.worker_id or status.generation >= stored.generation


def _decode_key(key: bytes | None) -> str:
    return key.decode(errors="replace") if key is not None else ""


def _is_stale_unassigned(stored: Status | None, status: Status) -> bool:
    """Whether ``status`` is an UNASSIGNED of a former owner, or of the leader of an earlier round, that arrives after
    the next owner or leader has written the ``stored`` status.

    Connect checks only whether the stored status is RUNNING (KAFKA-12525). But the owner of a paused or failed job is
    its owner, too; and the leader's reason why a job has no worker must not be replaced by the former owner's late
    UNASSIGNED status.
    """
    return (
        stored is not None
        and status.state is JobState.UNASSIGNED
        and stored.worker_id != status.worker_id
        and stored.generation >= status.generation
    )
