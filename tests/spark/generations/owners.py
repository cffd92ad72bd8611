"""Owners of a connector without Spark, and what its config requires of its generations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.spark.fence import Fence
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.resplit import ResplitFinisher
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.updater import GenerationRequest, GenerationUpdater
from coterie.spark.sources.kafka_positions import KafkaPositionStore, TopicIdPartition

CONFIG = {"sink.format": "json", "sink.path": "/out", "sink.option.compression": "gzip", "transforms": "t"}
PARTS = tuple(str(TopicIdPartition(topic="t", partition=number, topic_id="i")) for number in range(3))


def finisher(connector: Path, fence: Fence | None = None) -> ResplitFinisher:
    def run_batch(manifest: Manifest, task: int, held: object) -> None:
        raise AssertionError("no batch is in flight")

    return ResplitFinisher(
        connector_path=connector,
        find_position_store=lambda config: KafkaPositionStore(),
        run_batch_in_flight=run_batch,
        fence=fence or Fence(),
    )


def owner(connector: Path, **keys: Any) -> GenerationUpdater:
    return GenerationUpdater(finisher(connector), **{"tasks_stop_timeout_ms": 0, "liveness_timeout_ms": 200} | keys)


def request_of(
    *tasks: Sequence[str],
    known: bool = True,
    fixed: bool = False,
    requested: list[str] | None = None,
    keys_to_infer: frozenset[str] = frozenset(),
    **config: str,
) -> GenerationRequest:
    def initial_positions(source_partitions: Sequence[str], *, is_new_connector: bool) -> dict[str, int]:
        if requested is not None:
            requested.extend(source_partitions)
        return dict.fromkeys(source_partitions, 3)

    return GenerationRequest(
        config=CONFIG | {key.replace("__", "."): value for key, value in config.items()},
        split=Split(function=SplitFunction.PARTS_V1, partitions_by_task=tuple(tuple(parts) for parts in tasks)),
        identify_sink=lambda config: {
            key: value for key, value in config.items() if key in ("sink.path", "sink.format")
        },
        find_initial_positions=initial_positions,
        keys_to_infer=keys_to_infer,
        infer_values=lambda known: dict.fromkeys(keys_to_infer - known.keys(), f"inferred from {config}"),
        is_split_fixed=fixed,
        has_task_configs_with_generation=known,
        make_legacy_layout_manifest=None,
    )
