"""A JVM with the jars of a folder, without Spark: it starts in a second."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.kafka.real_kafka import java_path


@contextmanager
def running_jvm(jars: Path) -> Iterator[Any]:
    """A JVM with the jars of a folder and the dependencies of Kafka's clients. It ends with this process."""
    sparks = Path(pyspark.__file__).parent / "jars"
    (py4j,) = sparks.glob("py4j-*.jar")
    needed = [
        path for name in ("slf4j-api", "lz4-java", "snappy-java", "zstd-jni") for path in sparks.glob(f"{name}-*")
    ]
    port = launch_gateway(
        jarpath=str(py4j),
        classpath=":".join((f"{jars}/*", *map(str, needed))),
        javaopts=["-XX:TieredStopAtLevel=1"],
        java_path=java_path(),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()


class Producers:
    """Replaces Spark's pool, which needs a session: creates a new producer each time."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def acquire(self, properties: Any) -> "Pooled":
        return Pooled(self._java.org.apache.kafka.clients.producer.KafkaProducer(properties))

    def release(self, pooled: "Pooled") -> None:
        """Does nothing: the producer was closed before."""


class Pooled:
    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def producer(self) -> Any:
        return self._producer
