"""The error tree: the kind of an error decides where it is handled (design: four doors).

    CoterieError
    ├── ConfigError      a setting or a connector config is wrong; names each key
    ├── Refusal          a request is refused and has changed nothing; becomes a reply
    │   ├── KafkaRefusal     in `wire.errors`: with Kafka's error code
    │   └── HttpRefusal      in `rest.problems`, with its children: with the status of HTTP
    ├── WireError        a peer's bytes are malformed; an error response is sent or the connection is closed
    ├── WorldError       something outside this process failed (disk full, broker unreachable, query failed); becomes
    │   │                an event
    │   ├── NotAdmittedError       in `kafka.connection`: the broker is not trusted, or rejects this client
    │   ├── SignatureRefusedError  in `herder.seams`: the leader responds that a signature is not valid
    │   ├── SplitEndedError        in `herder.seams`: a connector's split was ended before it was complete
    │   ├── GenerationAbsentError  in `spark.generations.taking`: the checkpoint generation is not on the shared file
    │   │                          system
    │   └── UnreachableError       a server cannot be reached or does not respond: another start may succeed
    ├── DeniedError      (in `wire.scram`) a peer, client or broker, cannot prove its identity; the connection is closed
    ├── FencedError      (in `spark.fence`) a task was stopped or taken over: its effect must not happen
    ├── NoExchangeError  (in `spark.checkpoint`) the file system cannot exchange two names; the fallback is used
    ├── ReadAgainError   (in `spark.seams`) a batch has to be read again, after a new start of its query
    ├── GenerationClosedError  (in `spark.generations.taking`) a task waits for a config of another checkpoint
    │                          generation
    └── OvertakenError   (in `spark.generations.resplit`) another worker completes the checkpoint generation; this one
                         stops

`AssertionError` and every other exception that reaches a machine's shell are bugs in Coterie: they stop one machine,
which is loaded again from its log.
"""

from collections.abc import Mapping, Sequence


class CoterieError(Exception):
    """The base of all errors that Coterie raises on purpose."""


class ConfigError(CoterieError):
    """One or more configuration values are wrong; ``errors`` contains the messages by key."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {key: tuple(sentences) for key, sentences in errors.items()}
        super().__init__("; ".join(f"{key}: {' '.join(all_)}" for key, all_ in sorted(self.errors.items())))

    @property
    def listed(self) -> dict[str, list[str]]:
        """A copy of ``errors`` to which a check of a config can add further messages."""
        return {key: list(sentences) for key, sentences in self.errors.items()}


class Refusal(CoterieError):
    """A request is refused and has changed nothing. Each subclass contains the error code of its protocol."""


class WireError(CoterieError):
    """A peer's bytes are malformed, or announce a length or count greater than the bytes that follow."""


class WorldError(CoterieError):
    """Something outside this process failed; the message contains what failed and what to do."""


class UnreachableError(WorldError):
    """A server cannot be reached, or a connection to it broke; another start may succeed."""
