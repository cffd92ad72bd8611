"""Error texts of a failed query: its cause in one line, then the stack trace."""

import re
import traceback
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from coterie.nouns.errors import CoterieError

_MESSAGE_MAX = 600
"""Number of characters after which a message is cut off."""
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE: P0001", re.DOTALL)
"""Spark's error when an expression calls ``raise_error``; the group is the message that ``raise_error`` was given."""
_ENDED = "Python worker exited unexpectedly"
"""Part of Spark's error when a Python process that runs a user's function has ended."""
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?=\n\n|\n\s*at |\Z)", re.DOTALL)
"""A Python traceback in a Java exception's message."""
_PLACE = re.compile(r' +File "(.+)", line (\d+), in (\S+)')
"""A line of a Python traceback: file, line number and function."""
_CAUSES_MAX = 3
"""Maximum number of messages in the text about one Java exception, from the outermost exception inwards: these messages
name the file, the error in the file and the value."""


def trace_of(error: BaseException) -> str:
    """The text about ``error``: its message in one line (:func:`message_of`), then Python's stack trace; for a
    :class:`CoterieError` only its message."""
    if isinstance(error, CoterieError):
        return str(error)
    return f"{message_of(error)}\n\n{''.join(traceback.format_exception(error))}"


def message_of(error: BaseException) -> str:
    """The message of ``error`` in one line. For an error of Spark, see :func:`java_message_of`; for an OSError, the
    system's message and the file; for other errors that are not Coterie's, the type and the message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    if (throwable := throwable_of(error)) is not None:
        return java_message_of(throwable)
    return str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {_one_line(str(error))}"


def java_message_of(throwable: Any) -> str:
    """One line about the cause of a Java exception: the first :data:`_CAUSES_MAX` different messages of the exception
    and of its causes or, if one of them reports a failed function of a user, only that (:func:`_python_message`)."""
    messages: list[str] = []
    while throwable is not None and len(messages) < _CAUSES_MAX:
        whole = throwable.getMessage() or ""
        if (sentence := _python_message(whole)) is not None:
            return sentence
        message = _one_line(whole)
        if message and not any(message in known or known in message for known in messages):
            messages.append(message)
        throwable = throwable.getCause()
    return " Cause: ".join(messages) or "Spark gives no reason"


def _python_message(message: str) -> str | None:
    """A sentence about a failed function of a user, from the message of a Java exception: the exception that the
    function raised, with file, line and function, or that its Python process ended. None when ``message`` reports
    neither."""
    if _ENDED in message:
        return (
            "A function's Python process ended before the function had returned: it called os._exit, crashed, or was "
            "killed for its memory"
        )
    tracebacks = _TRACEBACK.findall(message)
    if not tracebacks:
        return None
    lines = [line for line in tracebacks[-1].splitlines() if line.strip()]
    raised = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1].strip())
    places = [found for line in lines if (found := _PLACE.match(line))]
    own = [place for place in places if "/pyspark/" not in place[1] and "/coterie/spark/" not in place[1]]
    where = f" ({Path(own[-1][1]).name}, line {own[-1][2]}, in {own[-1][3]})" if own else ""
    return f"A function in Python raised {_one_line(raised)}{where}"


def raise_error_message(error: BaseException) -> str | None:
    """The message of ``raise_error`` if an expression of a query has called it; None for every other error. Such a
    query fails again after a restart, because the rows are the same."""
    found = _RAISED.search(str(error))
    return None if found is None else found[1]


def throwable_of(error: BaseException) -> Any | None:
    """The Java exception that ``error``, an exception of PySpark or Py4J, wraps; None when it wraps none."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _one_line(message: str) -> str:
    """``message`` in one line, without the stack trace and the SQLSTATE that some of Spark's messages contain, and cut
    off after :data:`_MESSAGE_MAX` characters."""
    text = " ".join(re.split(r"\n\s*at |\nDriver stacktrace", message)[0].split())
    text = re.sub(r" SQLSTATE: \w+$", "", text)
    return text if len(text) <= _MESSAGE_MAX else f"{text[:_MESSAGE_MAX]}…"
