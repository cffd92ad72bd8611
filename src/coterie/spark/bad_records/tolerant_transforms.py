"""Applies transforms so that a failing expression marks its row as bad instead of failing the batch.

A transform is applied to rows without the error columns. Afterwards this module builds the transform's part of Spark's
logical plan again, node by node: each projection also keeps the error columns, and each filter keeps bad rows. An
expression that can fail is computed inside Spark's ``TryEval``: if it fails, the row gets an error and the batch
continues. For a row that is already bad, no expression that can fail is computed.

So transforms need no code for bad records, if they compute each row separately with expressions of Spark: their nodes
are then projections and filters. This is the only module of the package that builds nodes of Spark's plans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.error_columns import (
    ERROR_COLUMN,
    ERROR_TYPE,
    ORIGINAL_COLUMN,
    STAGE_TASK_PUT,
    STAGE_TRANSFORMATION,
    error_column_value,
    merge_into_bad_row_column,
)
from coterie.spark.bad_records.keys import TOLERANCE_KEY
from coterie.spark.plugin_calls import plugin_stage
from coterie.spark.seams import Sink
from coterie.spark.transforms import Transform

_INFALLIBLE_EXPRESSIONS = frozenset(
    [
        "Alias",
        "And",
        "AttributeReference",
        "CaseWhen",
        "Coalesce",
        "Concat",
        "Contains",
        "EndsWith",
        "EqualNullSafe",
        "EqualTo",
        "GetStructField",
        "GreaterThan",
        "GreaterThanOrEqual",
        "If",
        "In",
        "InSet",
        "IsNotNull",
        "IsNull",
        "LessThan",
        "LessThanOrEqual",
        "Literal",
        "Lower",
        "Not",
        "Or",
        "StartsWith",
        "StringTrim",
        "Upper",
    ]
)
"""Class names of Spark's expressions that never fail: they need no ``TryEval``."""
_NAMING_NODES = frozenset(["SubqueryAlias", "View"])
"""Class names of nodes that only name their child: the rebuilt plan contains only the child."""


def apply_transforms_tolerantly(rows: DataFrame, transforms: Iterable[Transform], sink: Sink | None) -> DataFrame:
    """Apply ``transforms``, and then :meth:`Sink.to_sink_columns` unless ``sink`` is None, to ``rows``, which have the
    error columns. A row for which an expression fails becomes a bad row. The result has the column ``BAD_ROW_COLUMN``
    instead of the error columns.

    :raises ConfigError: when a transform or the sink does not fit its input columns, or does not compute each row
        separately.
    """
    for transform in transforms:
        setting = f"{transform.config_key_in_errors}={transform.value_of_key_in_errors}"
        error_message = f"{setting} cannot be computed for this record"
        step = _StepErrorTexts(
            config_key_in_errors=transform.config_key_in_errors,
            stage=STAGE_TRANSFORMATION,
            class_name=transform.configured_type_name,
            error_message=error_message,
        )
        rows = _TolerantPlanBuilder(rows, step).rebuild_with_error_columns(
            transform.apply(rows.drop(ORIGINAL_COLUMN, ERROR_COLUMN))
        )
    if sink is not None:
        name = type(sink).__name__
        error_message = f"The columns that {name} writes cannot be computed for this record"
        step = _StepErrorTexts(
            config_key_in_errors="sink.class", stage=STAGE_TASK_PUT, class_name=name, error_message=error_message
        )
        with plugin_stage("to_sink_columns"):
            sink_rows = sink.to_sink_columns(rows.drop(ORIGINAL_COLUMN, ERROR_COLUMN))
        rows = _TolerantPlanBuilder(rows, step).rebuild_with_error_columns(sink_rows)
    return merge_into_bad_row_column(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepErrorTexts:
    """The texts by which errors name one step: a transform, or the sink's :meth:`Sink.to_sink_columns`."""

    config_key_in_errors: str
    """The config key that a ConfigError about the step names: a key of the transform, or ``sink.class``."""
    stage: str
    """Connect's name of the stage of the step, in the error of a row that fails in it (:data:`ERROR_TYPE`)."""
    class_name: str
    """The type of the transform, or the class of the sink, in the error of a row that fails in the step."""
    error_message: str
    """The message in the error of a row that fails in the step."""


class _TolerantPlanBuilder:
    """Builds the plan of one step again, with the error columns, on top of the plan of ``rows``: the rows before the
    step.

    Plans, nodes and expressions are objects of the JVM.
    """

    def __init__(self, rows: DataFrame, step: _StepErrorTexts) -> None:
        self._spark = rows.sparkSession
        self._step = step
        java: Any = self._spark._jvm
        self._java = java
        self._expression_classes = java.org.apache.spark.sql.catalyst.expressions
        self._plan_node_classes = java.org.apache.spark.sql.catalyst.plans.logical
        self._plan_before = _analyzed_plan(rows)
        self._error_value = self._constant_column_to_expression(
            error_column_value(step.stage, step.class_name, step.error_message).cast(ERROR_TYPE)
        )
        self._value_field_name = self._constant_column_to_expression(F.lit("value"))

    def rebuild_with_error_columns(self, rows_after: DataFrame) -> DataFrame:
        """``rows_after``, the rows after the step, with the error columns added.

        :raises ConfigError: when the plan of ``rows_after`` has a node that does not compute each row separately.
        """
        java: Any = self._spark
        plan = self._rebuild_node_or_raise(_analyzed_plan(rows_after))
        return DataFrame(self._java.org.apache.spark.sql.classic.Dataset.ofRows(java._jsparkSession, plan), self._spark)

    def _rebuild_node_or_raise(self, node: Any) -> Any:
        """The plan ``node``, with all nodes below it, built again: each projection has the error columns too, and each
        filter keeps bad rows.

        :raises ConfigError: when a node does not compute each row separately.
        """
        if node.fastEquals(self._plan_before):
            return self._plan_before
        name = node.getClass().getSimpleName()
        if name == "Project":
            return self._rebuild_projection(
                self._rebuild_node_or_raise(node.child()), _scala_seq_items(node.projectList())
            )
        if name == "Filter":
            return self._rebuild_filter(self._rebuild_node_or_raise(node.child()), node.condition())
        if name in _NAMING_NODES:
            return self._rebuild_node_or_raise(node.child())
        raise ConfigError(
            {
                TOLERANCE_KEY: [
                    f"{TOLERANCE_KEY}=all cannot be used with {self._step.config_key_in_errors}: Spark runs this step "
                    f"as {name}, which loses the original record of a row; set errors.tolerance=none, or "
                    "replace the transform or sink"
                ]
            }
        )

    def _rebuild_projection(self, child: Any, outputs: Sequence[Any]) -> Any:
        """A projection of ``child`` to the columns ``outputs`` and the error columns. A row becomes bad if an output
        fails."""
        can_fail_flags = [_can_expression_fail(output) for output in outputs]
        if not any(can_fail_flags):
            error_columns = [self._find_attribute(child, name) for name in (ORIGINAL_COLUMN, ERROR_COLUMN)]
            return self._plan_node_classes.Project(self._to_scala_seq([*outputs, *error_columns]), child)
        tried_columns = [
            self._make_null_if_failed_column(child, output.child())
            for output, can_fail in zip(outputs, can_fail_flags, strict=True)
            if can_fail
        ]
        try_projection = self._plan_node_classes.Project(
            self._to_scala_seq([*_scala_seq_items(child.output()), *tried_columns]), child
        )
        results = [tried_column.toAttribute() for tried_column in tried_columns]
        remaining_results = iter(results)
        final_outputs = [
            output.withNewChildren(self._to_scala_seq([self._value_of_null_if_failed_column(next(remaining_results))]))
            if can_fail
            else output
            for output, can_fail in zip(outputs, can_fail_flags, strict=True)
        ]
        error_columns = [
            self._find_attribute(try_projection, ORIGINAL_COLUMN),
            self._updated_error_column(try_projection, results),
        ]
        return self._plan_node_classes.Project(self._to_scala_seq([*final_outputs, *error_columns]), try_projection)

    def _rebuild_filter(self, child: Any, condition: Any) -> Any:
        """A filter of ``child`` that keeps the bad rows and the rows for which ``condition`` is true. A row becomes bad
        if ``condition`` fails."""
        if not _can_expression_fail(condition):
            return self._plan_node_classes.Filter(
                self._or_of_conditions([self._bad_row_condition(child), condition]), child
            )
        tried_condition = self._make_null_if_failed_column(child, condition)
        try_projection = self._plan_node_classes.Project(
            self._to_scala_seq([*_scala_seq_items(child.output()), tried_condition]), child
        )
        other_columns = [item for item in _scala_seq_items(child.output()) if item.name() != ERROR_COLUMN]
        result = tried_condition.toAttribute()
        error_projection = self._plan_node_classes.Project(
            self._to_scala_seq([*other_columns, self._updated_error_column(try_projection, [result]), result]),
            try_projection,
        )
        kept_rows = self._plan_node_classes.Filter(
            self._or_of_conditions(
                [self._bad_row_condition(error_projection), self._value_of_null_if_failed_column(result)]
            ),
            error_projection,
        )
        outputs = [
            item for item in _scala_seq_items(error_projection.output()) if not item.exprId().equals(result.exprId())
        ]
        return self._plan_node_classes.Project(self._to_scala_seq(outputs), kept_rows)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _make_null_if_failed_column(self, child: Any, expression: Any) -> Any:
        """A new column of ``child``: a struct with the value of ``expression``; null if ``expression`` fails or the row
        is already bad."""
        value_struct = self._expression_classes.CreateNamedStruct(
            self._to_scala_seq([self._value_field_name, expression])
        )
        is_good = self._expression_classes.IsNull(self._find_attribute(child, ERROR_COLUMN))
        null = self._expression_classes.Literal(None, value_struct.dataType())
        return self._alias(
            self._expression_classes.If(is_good, self._expression_classes.TryEval(value_struct), null), "coterie_tried"
        )

    def _value_of_null_if_failed_column(self, result: Any) -> Any:
        """The expression for the value in the struct ``result``, a column that :meth:`_make_null_if_failed_column` has
        made: null for a row for which the tried expression failed or was not computed."""
        return self._expression_classes.GetStructField(result, 0, self._scala_none())

    def _updated_error_column(self, child: Any, results: Sequence[Any]) -> Any:
        """The column :data:`ERROR_COLUMN` of ``child`` after the columns ``results`` of
        :meth:`_make_null_if_failed_column` were computed: a row without an error gets the step's error if one of its
        ``results`` is null."""
        error = self._find_attribute(child, ERROR_COLUMN)
        has_failed = self._or_of_conditions([self._expression_classes.IsNull(result) for result in results])
        is_new = self._expression_classes.And(self._expression_classes.IsNull(error), has_failed)
        return self._alias(self._expression_classes.If(is_new, self._error_value, error), ERROR_COLUMN)

    def _bad_row_condition(self, child: Any) -> Any:
        """The condition that a row of ``child`` has an error."""
        return self._expression_classes.IsNotNull(self._find_attribute(child, ERROR_COLUMN))

    def _or_of_conditions(self, conditions: Sequence[Any]) -> Any:
        """The condition that at least one of ``conditions`` is true."""
        disjunction = conditions[0]
        for condition in conditions[1:]:
            disjunction = self._expression_classes.Or(disjunction, condition)
        return disjunction

    def _alias(self, expression: Any, name: str) -> Any:
        """``expression`` as a new column ``name``."""
        expression_id = self._expression_classes.NamedExpression.newExprId()
        return self._expression_classes.Alias(
            expression, name, expression_id, self._to_scala_seq([]), self._scala_none(), self._to_scala_seq([])
        )

    def _constant_column_to_expression(self, column: Column) -> Any:
        """``column`` as an expression. ``column`` must consist of constants: it must not refer to columns of rows."""
        plan = _analyzed_plan(self._spark.range(1).select(column.alias("one")))
        return plan.projectList().head().child()

    def _find_attribute(self, node: Any, name: str) -> Any:
        """The attribute with the name ``name`` in the output of ``node``."""
        return next(item for item in _scala_seq_items(node.output()) if item.name() == name)

    def _to_scala_seq(self, items: Sequence[Any]) -> Any:
        """``items`` as a Seq of Scala."""
        return self._java.PythonUtils.toSeq(list(items))

    def _scala_none(self) -> Any:
        """Scala's ``None``."""
        return self._java.scala.Option.empty()


def _analyzed_plan(rows: DataFrame) -> Any:
    """The analyzed logical plan of ``rows``."""
    frame: Any = rows
    return frame._jdf.queryExecution().analyzed()


def _scala_seq_items(seq: Any) -> list[Any]:
    """The elements of ``seq``, a Seq of Scala."""
    return [seq.apply(index) for index in range(seq.length())]


def _can_expression_fail(expression: Any) -> bool:
    """Whether ``expression`` may fail for a row: it, or an expression in it, is not in :data:`_INFALLIBLE_EXPRESSIONS`.
    A column that is projected unchanged never fails."""
    if expression.getClass().getSimpleName() not in _INFALLIBLE_EXPRESSIONS:
        return True
    return any(_can_expression_fail(child) for child in _scala_seq_items(expression.children()))
