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
    ERROR,
    ERROR_TYPE,
    ORIGINAL,
    STAGE_TASK_PUT,
    STAGE_TRANSFORMATION,
    error_value,
    with_bad_row_column,
)
from coterie.spark.bad_records.keys import TOLERANCE
from coterie.spark.seams import Sink
from coterie.spark.transforms import Transform

_NEVER_FAIL = frozenset(
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
_TRANSPARENT = frozenset(["SubqueryAlias", "View"])
"""Class names of nodes that only name their child: the built plan contains only the child."""


def apply_tolerant(rows: DataFrame, transforms: Iterable[Transform], sink: Sink | None) -> DataFrame:
    """Apply ``transforms``, and then :meth:`Sink.to_sink_columns` unless ``sink`` is None, to ``rows``, which have the
    error columns. A row for which an expression fails becomes a bad row. The result has the column ``BAD`` instead of
    the error columns.

    :raises ConfigError: when a transform or the sink does not fit its input columns, or does not compute each row
        separately.
    """
    for one in transforms:
        failure = f"{one.key}={one.value} cannot be computed for this record"
        step = _Step(key=one.key, stage=STAGE_TRANSFORMATION, class_name=one.type, error_message=failure)
        rows = _TolerantPlan(rows, step).rebuild(one.apply(rows.drop(ORIGINAL, ERROR)))
    if sink is not None:
        name = type(sink).__name__
        failure = f"The columns that {name} writes cannot be computed for this record"
        step = _Step(key="sink.class", stage=STAGE_TASK_PUT, class_name=name, error_message=failure)
        rows = _TolerantPlan(rows, step).rebuild(sink.to_sink_columns(rows.drop(ORIGINAL, ERROR)))
    return with_bad_row_column(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A transform or the sink's :meth:`Sink.to_sink_columns`. ``key`` is its config key, for a ConfigError. The other
    fields are those of the error of a row that fails in this step (:data:`ERROR_TYPE`)."""

    key: str
    stage: str
    class_name: str
    error_message: str


class _TolerantPlan:
    """Builds the plan of one step again, with the error columns, on top of the plan of ``rows``: the rows before the
    step.

    Plans, nodes and expressions are objects of the JVM.
    """

    def __init__(self, rows: DataFrame, step: _Step) -> None:
        self._spark = rows.sparkSession
        self._step = step
        java: Any = self._spark._jvm
        self._java = java
        self._expressions = java.org.apache.spark.sql.catalyst.expressions
        self._nodes = java.org.apache.spark.sql.catalyst.plans.logical
        self._before = _plan(rows)
        self._error_value = self._expression(
            error_value(step.stage, step.class_name, step.error_message).cast(ERROR_TYPE)
        )
        self._name = self._expression(F.lit("value"))

    def rebuild(self, changed: DataFrame) -> DataFrame:
        """``changed``, the rows after the step, with the error columns.

        :raises ConfigError: when the plan of ``changed`` has a node that does not compute each row separately.
        """
        java: Any = self._spark
        plan = self._built(_plan(changed))
        return DataFrame(self._java.org.apache.spark.sql.classic.Dataset.ofRows(java._jsparkSession, plan), self._spark)

    def _built(self, node: Any) -> Any:
        """The plan ``node`` with the error columns added to each projection, and bad rows kept by each filter."""
        if node.fastEquals(self._before):
            return self._before
        name = node.getClass().getSimpleName()
        if name == "Project":
            return self._projected(self._built(node.child()), _items(node.projectList()))
        if name == "Filter":
            return self._filtered(self._built(node.child()), node.condition())
        if name in _TRANSPARENT:
            return self._built(node.child())
        raise ConfigError(
            {
                TOLERANCE: [
                    f"{TOLERANCE}=all cannot be used with {self._step.key}: Spark runs this step as {name}, which "
                    "loses the original record of a row; set errors.tolerance=none, or remove the transform"
                ]
            }
        )

    def _projected(self, child: Any, outputs: Sequence[Any]) -> Any:
        """A projection of ``child`` to the columns ``outputs`` and the error columns. A row becomes bad if an output
        fails."""
        guards = [_can_fail(output) for output in outputs]
        if not any(guards):
            hidden = [self._attribute(child, name) for name in (ORIGINAL, ERROR)]
            return self._nodes.Project(self._seq([*outputs, *hidden]), child)
        tried = [self._tried(child, output.child()) for output, guard in zip(outputs, guards, strict=True) if guard]
        below = self._nodes.Project(self._seq([*_items(child.output()), *tried]), child)
        results = [one.toAttribute() for one in tried]
        left = iter(results)
        computed = [
            output.withNewChildren(self._seq([self._value(next(left))])) if guard else output
            for output, guard in zip(outputs, guards, strict=True)
        ]
        hidden = [self._attribute(below, ORIGINAL), self._error(below, results)]
        return self._nodes.Project(self._seq([*computed, *hidden]), below)

    def _filtered(self, child: Any, condition: Any) -> Any:
        """A filter of ``child`` that keeps the bad rows and the rows for which ``condition`` is true. A row becomes bad
        if ``condition`` fails."""
        if not _can_fail(condition):
            return self._nodes.Filter(self._or([self._is_bad(child), condition]), child)
        tried = self._tried(child, condition)
        below = self._nodes.Project(self._seq([*_items(child.output()), tried]), child)
        visible = [item for item in _items(child.output()) if item.name() != ERROR]
        result = tried.toAttribute()
        judged = self._nodes.Project(self._seq([*visible, self._error(below, [result]), result]), below)
        kept = self._nodes.Filter(self._or([self._is_bad(judged), self._value(result)]), judged)
        outputs = [item for item in _items(judged.output()) if not item.exprId().equals(result.exprId())]
        return self._nodes.Project(self._seq(outputs), kept)

    # -- expressions --------------------------------------------------------------------------------------------------

    def _tried(self, child: Any, expression: Any) -> Any:
        """A new column of ``child``: a struct with the value of ``expression``; null if ``expression`` fails or the row
        is already bad."""
        made = self._expressions.CreateNamedStruct(self._seq([self._name, expression]))
        is_good = self._expressions.IsNull(self._attribute(child, ERROR))
        nothing = self._expressions.Literal(None, made.dataType())
        return self._alias(self._expressions.If(is_good, self._expressions.TryEval(made), nothing), "coterie_tried")

    def _value(self, result: Any) -> Any:
        """The expression's value in ``result``, a column of :meth:`_tried`."""
        return self._expressions.GetStructField(result, 0, self._none())

    def _error(self, child: Any, results: Sequence[Any]) -> Any:
        """The column :data:`ERROR` of ``child`` after the columns ``results`` of :meth:`_tried` were computed: a row
        without an error gets the step's error if one of its ``results`` is null."""
        error = self._attribute(child, ERROR)
        has_failed = self._or([self._expressions.IsNull(result) for result in results])
        is_new = self._expressions.And(self._expressions.IsNull(error), has_failed)
        return self._alias(self._expressions.If(is_new, self._error_value, error), ERROR)

    def _is_bad(self, child: Any) -> Any:
        """The condition that a row of ``child`` has an error."""
        return self._expressions.IsNotNull(self._attribute(child, ERROR))

    def _or(self, conditions: Sequence[Any]) -> Any:
        whole = conditions[0]
        for condition in conditions[1:]:
            whole = self._expressions.Or(whole, condition)
        return whole

    def _alias(self, expression: Any, name: str) -> Any:
        """``expression`` as a new column ``name``."""
        fresh = self._expressions.NamedExpression.newExprId()
        return self._expressions.Alias(expression, name, fresh, self._seq([]), self._none(), self._seq([]))

    def _expression(self, column: Column) -> Any:
        """The expression of ``column``, which depends on no other column."""
        one = _plan(self._spark.range(1).select(column.alias("one")))
        return one.projectList().head().child()

    def _attribute(self, node: Any, name: str) -> Any:
        """The column ``name`` in the output of ``node``."""
        return next(item for item in _items(node.output()) if item.name() == name)

    def _seq(self, items: Sequence[Any]) -> Any:
        """``items`` as a Seq of Scala."""
        return self._java.PythonUtils.toSeq(list(items))

    def _none(self) -> Any:
        """None of Scala."""
        return self._java.scala.Option.empty()


def _plan(rows: DataFrame) -> Any:
    """The analyzed logical plan of ``rows``."""
    frame: Any = rows
    return frame._jdf.queryExecution().analyzed()


def _items(seq: Any) -> list[Any]:
    """The elements of ``seq``, a Seq of Scala."""
    return [seq.apply(index) for index in range(seq.length())]


def _can_fail(expression: Any) -> bool:
    """Whether ``expression`` may fail for a row: it, or an expression in it, is not in :data:`_NEVER_FAIL`. A column
    that is projected unchanged never fails."""
    if expression.getClass().getSimpleName() not in _NEVER_FAIL:
        return True
    return any(_can_fail(child) for child in _items(expression.children()))
