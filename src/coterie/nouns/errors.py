"""The error tree: what kind of thing went wrong, and so through which door it leaves (design: four doors).

    CoterieError
    ├── ConfigError      a setting or a connector config is wrong; names each key
    ├── Refusal          a request is refused and nothing of it was done; becomes a reply
    │   ├── KafkaRefusal     in `wire.errors`: with Kafka's error code
    │   └── HttpRefusal      in `rest.problems`, with its children: with the status of HTTP
    ├── WireError        a peer's bytes are malformed; answered or the connection closed
    ├── WorldError       the world failed: disk full, broker gone, query died; becomes an event
    │   ├── NotAdmittedError       in `kafka.connection`: the broker is not trusted, or does not admit this client
    │   ├── SignatureRefusedError  in `herder.seams`: the leader answers that a signature is not valid
    │   ├── SplitEndedError        in `herder.seams`: a connector's split was ended before it was done
    │   ├── GenerationAbsentError  in `spark.generations.taking`: the generation is not on the shared file system
    │   └── UnreachableError       a server cannot be reached or does not answer: another start may succeed
    ├── DeniedError      (in `wire.scram`) a peer, client or broker, cannot prove its identity; the connection is closed
    ├── FencedError      (in `spark.fence`) a task was stopped or taken over: its effect must not happen
    ├── NoExchangeError  (in `spark.checkpoint`) the file system cannot exchange two names; the fallback is used
    ├── ReadAgainError   (in `spark.seams`) a batch has to be read by a new start of its query
    ├── GenerationClosedError  (in `spark.generations.taking`) a task waits for a config of another generation
    └── OvertakenError   (in `spark.generations.resplit`) another worker finishes the generation; this one stops

Our own bugs are `AssertionError` and whatever else escapes: they stop one machine, which is loaded again from its log.
"""

from collections.abc import Mapping, Sequence


class CoterieError(Exception):
    """Everything that Coterie raises on purpose."""


class ConfigError(CoterieError):
    """One or more configuration values are wrong; ``errors`` holds the sentences by key."""

    def __init__(self, errors: Mapping[str, Sequence[str]]) -> None:
        self.errors = {key: tuple(sentences) for key, sentences in errors.items()}
        super().__init__("; ".join(f"{key}: {' '.join(all_)}" for key, all_ in sorted(self.errors.items())))

    @property
    def listed(self) -> dict[str, list[str]]:
        """A copy of ``errors`` that may be added to: what a check of a config returns."""
        return {key: list(sentences) for key, sentences in self.errors.items()}


class Refusal(CoterieError):
    """A request is refused, and nothing of it was done. A subclass carries the code that its protocol answers with."""


class WireError(CoterieError):
    """Bytes from a peer that mean nothing, or ask for more than they bring."""


class WorldError(CoterieError):
    """Something outside this process failed; the message says what, and what to do."""


class UnreachableError(WorldError):
    """A server cannot be reached, or a connection to it broke; another start may succeed."""
