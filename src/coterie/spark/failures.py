"""Error texts of a failed query: its cause in one line, then the stack trace. The values of references to secrets are
hidden in all of them. An exception that quotes such a value is replaced: one of Coterie by a copy without the value,
any other by a RuntimeError.
"""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from coterie.config.secrets import hide_secrets
from coterie.nouns.errors import CoterieError

SPARK_NOT_RUNNING_MESSAGE = (
    "Spark is not running on this worker: it has not started yet, or is being shut down; try again when the worker has "
    "started"
)
_MESSAGE_LENGTH_MAX = 600
"""Number of characters after which a message is cut off."""
_RAISE_ERROR_PATTERN = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE: P0001", re.DOTALL)
"""Spark's error when an expression calls ``raise_error``; the group is the message that ``raise_error`` was given."""
_PYTHON_PROCESS_ENDED = "Python worker exited unexpectedly"
"""Part of Spark's error when a Python process that runs a user's function has ended."""
_TRACEBACK_PATTERN = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?=\n\n|\n\s*at |\Z)", re.DOTALL)
"""A Python traceback in a Java exception's message."""
_TRACEBACK_LINE_PATTERN = re.compile(r' +File "(.+)", line (\d+), in (\S+)')
"""A line of a Python traceback: file, line number and function."""
_JAVA_MESSAGES_MAX = 3
"""Maximum number of messages in the text about one Java exception, from the outermost exception inwards: these messages
name the file, the error in the file and the value."""


@contextmanager
def hide_secrets_in_exceptions() -> Iterator[None]:
    """Context manager: raises the exceptions of the block without the values of references to secrets
    (:func:`exception_without_secrets`)."""
    try:
        yield
    except Exception as error:
        if (shown_error := exception_without_secrets(error)) is error:
            raise
        raise shown_error from None


def exception_without_secrets(error: Exception) -> Exception:
    """``error`` itself if no message of it or of its causes quotes the value of a reference to a secret; else an
    exception with the same message, in which these values are hidden, and without causes. For an exception of Coterie,
    this is an exception of the same class with the same fields, in whose texts the values are hidden, too; else it is a
    RuntimeError that names the class."""
    if not _quotes_secret(error):
        return error
    if isinstance(error, CoterieError):
        # The class is not called: its parameters need not be those of the exception's message.
        copy = type(error).__new__(type(error))
        copy.__dict__.update({name: _hide_secrets_in_field(value) for name, value in vars(error).items()})
        copy.args = _hide_secrets_in_field(error.args)
        if not _quotes_secret(copy):
            return copy.with_traceback(error.__traceback__)
    return RuntimeError(f"{type(error).__name__}: {hide_secrets(str(error))}").with_traceback(error.__traceback__)


def _quotes_secret(error: BaseException) -> bool:
    """Whether a message or note quotes the value of a reference to a secret: a message or note of ``error``, or of one
    of the other exceptions (causes, context) that Python prints with it. Files, lines and classes in the traceback do
    not count: a short value may be a part of them."""
    shown = traceback.TracebackException.from_exception(error, limit=0, compact=True)
    return any(hide_secrets(text) != text for text in _messages_and_notes_with_causes(shown))


def _messages_and_notes_with_causes(shown: traceback.TracebackException) -> Iterator[str]:
    """The messages and notes of the exception ``shown`` and of its causes; for a SyntaxError also the line of code."""
    yield str(shown)
    yield from map(str, getattr(shown, "__notes__", None) or ())
    if issubclass(shown.exc_type or Exception, SyntaxError):
        yield shown.text or ""
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            yield from _messages_and_notes_with_causes(other)


def _hide_secrets_in_field(value: Any) -> Any:
    """``value``, a field of an exception, with the secrets hidden in its texts: in a text, and in the texts of tuples,
    lists and dicts. Other values are returned unchanged."""
    if isinstance(value, str):
        return hide_secrets(value)
    if type(value) in (tuple, list):
        return type(value)(map(_hide_secrets_in_field, value))
    if isinstance(value, dict):
        return {key: _hide_secrets_in_field(item) for key, item in value.items()}
    return value


def may_be_lost_jvm_error(error: BaseException) -> bool:
    """Whether ``error`` may be due to the end of the JVM: ``error`` or one of its causes is a ConnectionError, or an
    error of py4j that wraps no exception of Java. False for an exception that Java raised: the JVM runs then."""
    cause: BaseException | None = error
    while cause is not None:
        is_of_py4j = isinstance(cause, Py4JError) and not isinstance(cause, Py4JJavaError)
        if is_of_py4j or isinstance(cause, ConnectionError):
            return True
        cause = cause.__cause__
    return False


def message_with_trace_unless_coterie_error(error: BaseException) -> str:
    """The text about ``error``: its message (:func:`error_message`), then Python's stack trace; for a
    :class:`CoterieError` only its message."""
    if isinstance(error, CoterieError):
        return hide_secrets(str(error))
    return f"{error_message(error)}\n\n{hide_secrets(''.join(traceback.format_exception(error)))}"


def error_message(error: BaseException) -> str:
    """The message of ``error`` without a stack trace. For an exception of Coterie: its message, unchanged. For an
    OSError: the system's message and the file. For an error that wraps a Java exception: see
    :func:`java_error_message`. For every other error: the type and the message, in one line. The values of references
    to secrets are hidden."""
    if isinstance(error, OSError) and error.strerror:
        return hide_secrets(error.strerror if error.filename is None else f"{error.strerror}: {error.filename}")
    if (java_exception := java_exception_of(error)) is not None:
        return java_error_message(java_exception)
    return (
        hide_secrets(str(error))
        if isinstance(error, CoterieError)
        else f"{type(error).__name__}: {_join_into_short_line(str(error))}"
    )


def java_error_message(java_exception: Any) -> str:
    """One line about the cause of a Java exception: the first :data:`_JAVA_MESSAGES_MAX` different messages of the
    exception and of its causes or, if one of them reports a failed function of a user, only that
    (:func:`_python_failure_message`). If none of them has a message: that Spark gives no reason."""
    messages: list[str] = []
    while java_exception is not None and len(messages) < _JAVA_MESSAGES_MAX:
        full_message = hide_secrets(java_exception.getMessage() or "")
        if (python_message := _python_failure_message(full_message)) is not None:
            return python_message
        message = _join_into_short_line(full_message)
        if message and not any(message in earlier or earlier in message for earlier in messages):
            messages.append(message)
        java_exception = java_exception.getCause()
    return " Cause: ".join(messages) or "Spark gives no reason"


def _python_failure_message(message: str) -> str | None:
    """A sentence about a failed function of a user, from the message of a Java exception: the exception that the
    function raised, with file, line and function, or that its Python process ended. None when ``message`` reports
    neither."""
    if _PYTHON_PROCESS_ENDED in message:
        return (
            "A function's Python process ended before the function had returned: it called os._exit, crashed, or was "
            "killed for its memory"
        )
    tracebacks = _TRACEBACK_PATTERN.findall(message)
    lines = [line for line in tracebacks[-1].splitlines() if line.strip()] if tracebacks else []
    if not lines:
        return None
    exception_line = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1].strip())
    trace_lines = [match_ for line in lines if (match_ := _TRACEBACK_LINE_PATTERN.match(line))]
    lines_of_user = [
        trace_line
        for trace_line in trace_lines
        if "/pyspark/" not in trace_line[1] and "/coterie/spark/" not in trace_line[1]
    ]
    position = (
        f" ({Path(lines_of_user[-1][1]).name}, line {lines_of_user[-1][2]}, in {lines_of_user[-1][3]})"
        if lines_of_user
        else ""
    )
    return f"A function in Python raised {_join_into_short_line(exception_line)}{position}"


def message_passed_to_raise_error(error: BaseException) -> str | None:
    """The message that an expression of a query passed to ``raise_error``; None when ``error`` has another cause. Such
    a query fails again after a restart, because the rows are the same."""
    match_ = _RAISE_ERROR_PATTERN.search(str(error))
    return None if match_ is None else match_[1]


def java_exception_of(error: BaseException) -> Any | None:
    """The Java exception that ``error``, an exception of PySpark or Py4J, wraps; None when it wraps none."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _join_into_short_line(message: str) -> str:
    """``message`` in one line: without line breaks, and without the stack trace and the SQLSTATE that some of Spark's
    messages contain; cut off after :data:`_MESSAGE_LENGTH_MAX` characters. Secrets are hidden."""
    text = " ".join(re.split(r"\n\s*at |\nDriver stacktrace", hide_secrets(message))[0].split())
    text = re.sub(r" SQLSTATE: \w+$", "", text)
    return text if len(text) <= _MESSAGE_LENGTH_MAX else f"{text[:_MESSAGE_LENGTH_MAX]}…"
