"""Tables that only Spark can write to."""

import json
from typing import Any

import pytest
from pyspark.sql.types import LongType

from coterie.spark.sinks.delta_columns import DeltaTableLayout


def field(name: str, type_: Any = "long", *, nullable: bool = True, **rules: str) -> dict[str, Any]:
    """A field of a schema; in ``rules`` two underscores stand for a dot."""
    metadata = {rule.replace("__", "."): value for rule, value in rules.items()}
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def layout_of(
    *fields: dict[str, Any], version: int = 2, features: tuple[str, ...] = (), by: str = "row"
) -> DeltaTableLayout:
    return DeltaTableLayout.of(
        schema=json.dumps({"type": "struct", "fields": list(fields)}),
        partition_columns=(by,),
        configuration={},
        writer_version=version,
        writer_features=features,
    )


def test_a_plain_table_can_be_written_with_files() -> None:
    for layout in (
        layout_of(field("row", comment="the row")),
        layout_of(field("row"), version=7, features=("appendOnly", "invariants", "timestampNtz")),
    ):
        assert layout.spark_only_reason is None
        assert layout.columns is not None
        assert layout.columns["row"].dataType == LongType()


NESTED = {"type": "struct", "fields": [field("in", nullable=False)]}
ARRAY = {"type": "array", "elementType": "long", "containsNull": False}


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (layout_of(field("row"), version=3), "its writer version is 3"),
        (layout_of(field("row"), version=7, features=("appendOnly", "deletionVectors")), "the table feature deletionV"),
        (layout_of(field("row", nullable=False)), "column row is NOT NULL"),
        (layout_of(field("row"), field("of", NESTED)), "column in is NOT NULL"),
        (layout_of(field("row"), field("of", ARRAY)), "without nulls"),
        (layout_of(field("row", delta__invariants="row < 5")), "column row has delta.invariants"),
        (
            layout_of(field("row", delta__generationExpression="1")),
            "column row has delta.generationExpression",
        ),
        (layout_of(field("row", "double")), "its partition column row has type double"),
    ],
)
def test_a_table_whose_rules_a_plain_append_would_break_is_written_by_spark(layout: DeltaTableLayout, why: str) -> None:
    assert why in (layout.spark_only_reason or "")
