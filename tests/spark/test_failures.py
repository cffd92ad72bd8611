"""A failure's first line names the cause; ``test_runtime.py`` has those of a real Spark."""

import errno
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from coterie.config.secrets import MASK, register_secret_to_hide
from coterie.herder.restart_policy import RestartPolicy
from coterie.herder.seams import RetriableStartError
from coterie.nouns.errors import ConfigError, WorldError
from coterie.spark.failures import (
    error_message,
    exception_without_secrets,
    java_error_message,
    message_with_trace_unless_coterie_error,
)
from coterie.spark.fence import FencedError
from coterie.spark.sources.kafka_client import TopicAbsentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Throwable:
    """A Java exception as py4j shows it."""

    message: str | None
    cause: "Throwable | None" = None

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> "Throwable | None":
        return self.cause


def test_an_error_of_coterie_is_its_message_without_a_stack_trace() -> None:
    assert message_with_trace_unless_coterie_error(WorldError("the folder is gone")) == "the folder is gone"
    assert message_with_trace_unless_coterie_error(ConfigError({"a": ["no"]})) == "a: no"


def test_any_other_error_is_one_line_and_its_stack_trace() -> None:
    try:
        raise OSError(errno.ENOENT, "No such file or directory", "/out")
    except OSError as error:
        first, blank, *stack = message_with_trace_unless_coterie_error(error).splitlines()
    assert (first, blank) == ("No such file or directory: /out", "")
    assert stack[0] == "Traceback (most recent call last):"
    assert error_message(ValueError("no\nnumber")) == "ValueError: no number"


def test_an_exception_of_a_python_function_is_reported_with_file_and_line() -> None:
    message = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 3, in main
    process()
  File "/acme/rates.py", line 31, in convert
    raise LookupError("no rate for XYZ")
LookupError: no rate for XYZ

\tat org.apache.spark.api.python.BasePythonRunner
Driver stacktrace:"""
    expected = "A function in Python raised LookupError: no rate for XYZ (rates.py, line 31, in convert)"
    assert java_error_message(Throwable(message=message)) == expected
    assert java_error_message(Throwable(message="Lost task", cause=Throwable(message=message))) == expected
    # Spark cuts long messages.
    cut = "PythonException: Traceback (most recent call last):\n"
    assert java_error_message(Throwable(message=cut)) == cut.strip()
    crashed = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert "it called os._exit, crashed" in java_error_message(Throwable(message=crashed))


def test_java_exceptions_are_reported_from_the_outermost_to_the_cause_without_repetition() -> None:
    number = Throwable(message='For input string: "x"')
    malformed = Throwable(message="Malformed records.\n  Mode: FAILFAST. SQLSTATE: 22023", cause=number)
    repeated = Throwable(message=malformed.message, cause=malformed)
    reading = Throwable(message="Cannot read a.csv. SQLSTATE: KD001\n\tat java.lang.Thread.run", cause=repeated)
    expected = 'Cannot read a.csv. Cause: Malformed records. Mode: FAILFAST. Cause: For input string: "x"'
    assert java_error_message(reading) == expected
    assert java_error_message(Throwable(message=None)) == "Spark gives no reason"
    assert len(java_error_message(Throwable(message="x" * 5_000))) == 601


# -- secrets in exceptions --------------------------------------------------------------------------------------------


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """``error`` after it was raised, because of ``cause``."""
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


SECRET_NAMES = """
from coterie.config.secrets import register_secret_to_hide
from coterie.nouns.errors import WorldError
from coterie.spark.failures import exception_without_secrets

register_secret_to_hide("<string>")
register_secret_to_hide("WorldError")
try:
    raise WorldError("a is away") from KeyError("a")
except WorldError as error:
    assert exception_without_secrets(error) is error
"""


def test_a_secret_that_only_names_a_file_or_a_class_of_the_traceback_changes_no_exception() -> None:
    """The check runs in a separate process, because a process never forgets a secret that it has to hide."""
    subprocess.run([sys.executable, "-c", SECRET_NAMES], check=True)


@pytest.mark.parametrize("is_in_cause", [False, True])
def test_an_exception_of_coterie_keeps_its_type_and_its_fields_without_secrets(is_in_cause: bool) -> None:
    register_secret_to_hide("open-sesame")
    policy = RestartPolicy(restarts_max=7, delay_max_ms=9)
    cause = ValueError("open-sesame") if is_in_cause else None
    text, hidden_text = ("no", "no") if is_in_cause else ("no open-sesame", f"no {MASK}")

    error = exception_without_secrets(raised(RetriableStartError(text, policy), cause))
    assert isinstance(error, RetriableStartError)
    assert (str(error), error.restart_policy) == (hidden_text, policy)
    assert error.__cause__ is error.__context__ is None
    assert error.__traceback__ is not None

    refused_config = exception_without_secrets(raised(ConfigError({"key": [text, "b"]}), cause))
    assert isinstance(refused_config, ConfigError)
    assert refused_config.errors == {"key": (hidden_text, "b")}
    assert str(refused_config) == f"key: {hidden_text} b"

    absent = exception_without_secrets(raised(TopicAbsentError([text]), cause))
    assert isinstance(absent, TopicAbsentError)
    assert absent.topics == (hidden_text,)


def test_an_exception_of_coterie_without_a_message_keeps_its_type_without_its_cause() -> None:
    register_secret_to_hide("open-sesame")
    error = exception_without_secrets(raised(FencedError(), ValueError("open-sesame")))
    assert isinstance(error, FencedError)
    assert not str(error)


def fails_in_a_group() -> Exception:
    return ExceptionGroup("two", [ValueError("open-sesame"), KeyError()])


def fails_with_a_note() -> Exception:
    error = ValueError("no")
    error.add_note("the password is open-sesame")
    return error


def fails_to_compile() -> Exception:
    with pytest.raises(SyntaxError) as caught:
        compile("password = open-sesame sesame", "<text>", "exec")
    return caught.value


def fails_while_another_is_handled() -> Exception:
    try:
        try:
            raise ValueError("open-sesame")
        except ValueError:
            raise LookupError("no")  # noqa: B904
    except LookupError as error:
        return error


def fails_with_another_exception_as_message() -> Exception:
    return WorldError(ValueError("open-sesame"))


@pytest.mark.parametrize(
    "fail",
    [
        fails_in_a_group,
        fails_with_a_note,
        fails_to_compile,
        fails_while_another_is_handled,
        fails_with_another_exception_as_message,
    ],
)
def test_no_text_of_an_exception_quotes_a_secret(fail: Callable[[], Exception]) -> None:
    register_secret_to_hide("open-sesame")
    error = fail()
    shown_error = exception_without_secrets(error)
    assert isinstance(shown_error, RuntimeError)
    assert str(shown_error).startswith(f"{type(error).__name__}: ")
    assert "open-sesame" not in "".join(traceback.format_exception_only(shown_error))
