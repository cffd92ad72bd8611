"""The error tree: the kind of an error decides where it is handled (design: four doors).

    CoterieError
    ├── ConfigError      a setting or a connector config is wrong; contains the messages for each wrong key
    ├── Refusal          a request is refused and has changed nothing; becomes a reply
    │   ├── KafkaRefusal     in `wire.errors`: with Kafka's error code
    │   ├── ConnectRefusal   in `groups.connect.refusal`: with the error code of the connect protocol
    │   └── HttpRefusal      in `rest.problems`, with its children: with the HTTP status
    ├── WireError        a peer's bytes are malformed; an error response is sent or the connection is closed
    │   ├── UnknownApiError        in `wire.schemas`: no such API, or no such version of the API
    │   ├── TooManyElementsError   in `wire.message_check`: a message has more elements than the caller allows
    │   ├── InvalidFieldError      in `wire.connect_group_jobs`: a field of a well-formed message has an invalid value
    │   └── DamagedBatchError      in `wire.batches`: a batch was damaged on its way
    ├── WorldError       something outside this process failed (disk full, broker unreachable, query failed); becomes
    │   │                an event
    │   ├── BrokerAccessError      in `kafka.connection`: the broker rejects this client, or the client does
    │   │                          not trust the broker
    │   ├── NoValidResponseError   in `kafka.connection`: the broker sent no response, or no valid response
    │   ├── UnsupportedApiError    in `kafka.connection`: the broker and Coterie have no version of an API in common
    │   ├── DiskFullError, DamagedLogError, TopicGoneError   in `broker.storage.store`: a write to the log failed
    │   ├── SignatureRefusedError  in `herder.seams`: the leader responds that a signature is not valid
    │   ├── WriterFencedError      another worker has opened the leader's log since; nothing was appended
    │   ├── RecordsDiscardedError  the leader's log does not contain the records of an append; nothing was appended
    │   ├── RequestNotSentError, ResponseMissingError   in `rest.leader`: another worker could not be reached, or sent
    │   │                          no response
    │   ├── SplitOrOffsetChangeAbortedError   in `herder.seams`: a connector's split, or a change of its offsets, was
    │   │                          ended before it was complete
    │   ├── RetriableStartError    in `herder.seams`: a start of a task has failed, and another start may succeed
    │   ├── GenerationAbsentError  in `spark.generations.checkpoint_take_over`: the checkpoint generation is not on the
    │   │                          shared file system
    │   ├── TakenOverInSinkError   in `spark.query`: a sink rejects a task because of a later start of the task
    │   ├── AbandonedCallError     in `spark.plugin_calls`, with its children: a call into a plug-in will have no result
    │   ├── SecretNotHiddenError   in `config.secrets`: a secret cannot be hidden wherever it could be shown, so it is
    │   │                          not used
    │   ├── WaitTimeoutError       in `cli.demo.script`: a condition of the demo did not become true in time
    │   └── UnreachableError       a server cannot be reached or does not respond: another attempt may succeed
    ├── UnknownPluginError, PluginVersionError   in `config.plugins`: there is no plug-in with a requested name, or with
    │                              a requested version
    ├── AuthenticationFailedError  in `wire.scram`: a peer, client or broker, cannot prove its identity; the connection
    │                              is closed
    ├── FencedError      in `spark.fence`: a task was stopped or taken over, so its batch must not be committed
    ├── ExchangeUnsupportedError   in `spark.checkpoint`: the file system cannot exchange two names; the fallback is
    │                              used
    ├── OffsetsRefusedError    in `nouns.connector_offsets`: a source cannot use the offsets of a request
    ├── BatchTooLargeError     in `spark.seams`: a batch is too large for memory; the next start of its query reads the
    │                          batch in smaller parts
    ├── TooManyTasksError      in `spark.seams`: a source returns more tasks than ``tasks.max``
    ├── TopicAbsentError       in `spark.sources.kafka_client`: a requested topic does not exist
    ├── GenerationClosedError  in `spark.generations.checkpoint_take_over`: a checkpoint generation is closed; its tasks
    │                          wait for a config that names another one
    └── SupersededError  in `spark.generations.resplit`: another worker has taken over a split of a connector; this
                         worker stops the split

`AssertionError` and every other exception that reaches a machine's shell are bugs in Coterie: a broker stops this
machine and loads it again from its log; a worker ends.
"""

from collections.abc import Mapping, Sequence


class CoterieError(Exception):
    """The base of all errors that Coterie raises on purpose."""


class ConfigError(CoterieError):
    """One or more values of a configuration are wrong. ``errors`` contains the messages by key; ``str()`` contains all
    keys and messages."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {key: tuple(sentences) for key, sentences in errors.items()}
        super().__init__("; ".join(f"{key}: {' '.join(all_)}" for key, all_ in sorted(self.errors.items())))

    @property
    def errors_as_new_lists(self) -> dict[str, list[str]]:
        """A copy of ``errors`` with lists, to which the check of a config can add further messages."""
        return {key: list(sentences) for key, sentences in self.errors.items()}


def invalid_value_message(key: str, value: object, reason: str) -> str:
    """Connect's message about the invalid value of a key. ``value``: as the message shows it; hide a secret value
    before. ``reason``: what is wrong with the value, or what it must be."""
    return f"Invalid value {value} for configuration {key}: {reason}"


class Refusal(CoterieError):
    """A request is refused and has changed nothing. Each subclass contains the error code or HTTP status of its
    protocol."""


class WireError(CoterieError):
    """A peer's bytes are malformed, for example because they announce a greater length or count than the bytes that
    follow."""


class WorldError(CoterieError):
    """Something outside this process failed; the message contains what failed and what to do."""


class UnreachableError(WorldError):
    """A server cannot be reached, does not respond in time, or has closed the connection; another attempt may
    succeed."""


class RecordsDiscardedError(WorldError):
    """The records could not be appended together: no reader of the log receives a record of the failed append. An
    append of some of these records may succeed."""


class WriterFencedError(WorldError):
    """Another writer has taken the right to append to the log: no reader of the log receives a record of the failed
    append."""
