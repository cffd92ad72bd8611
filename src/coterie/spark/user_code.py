"""Loads and calls functions of users, named ``package.module:name`` in configs, from modules that the worker allows."""

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from coterie.config.definition import split_list
from coterie.config.secrets import hide_secrets
from coterie.spark.settings import PythonSettings

MODULES_SETTING = "spark.coterie.pipeline.modules"
"""The setting of a worker's Spark session that contains the worker's ``pipeline.modules``: the modules whose functions
connectors may run, separated by commas."""
PYTHON_SETTING = "spark.sql.execution.pyspark.python"
"""Spark's setting for the Python executable that runs functions of users."""


def python_session_settings(python: PythonSettings) -> Mapping[str, str]:
    """The settings of a worker's Spark session for functions of users, by key: :data:`MODULES_SETTING` and
    :data:`PYTHON_SETTING`."""
    return {MODULES_SETTING: ",".join(python.allowed_modules), PYTHON_SETTING: python.executable or sys.executable}


def function_name_error(value: str) -> str | None:
    """A validator: None if ``value`` has the form ``package.module:function``, else the error message."""
    module, colon, name = value.partition(":")
    if colon and name.isidentifier() and all(module_part.isidentifier() for module_part in module.split(".")):
        return None
    return "Must be package.module:function"


def load_allowed_function(spark: SparkSession, function_name: str) -> Callable[..., Any]:
    """Import the function ``function_name``, a text that :func:`function_name_error` accepts.

    :raises ValueError: when the worker does not allow the module, the module cannot be imported, or it has no function
        of this name.
    """
    module_name, _, attribute_name = function_name.partition(":")
    allowed_modules = split_list(spark.conf.get(MODULES_SETTING, "") or "")
    if not any(module_name == prefix or module_name.startswith(f"{prefix}.") for prefix in allowed_modules):
        setting_text = f"allows {', '.join(allowed_modules)}" if allowed_modules else "is not set"
        raise ValueError(
            f"the worker does not allow the module {module_name}: its pipeline.modules {setting_text}. Add the module, "
            "or a package that it is in, to the file of every worker"
        )
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the module {module_name} cannot be imported: {exception_message(error)}") from error
    function = getattr(module, attribute_name, None)
    if function is None:
        raise ValueError(f"the module {module_name} has no {attribute_name}")
    if not callable(function):
        raise ValueError(f"{function_name} is a {type(function).__name__} and not a function")
    loaded: Callable[..., Any] = function
    return loaded


def exception_message(error: BaseException) -> str:
    """One line about an exception: its type, the first line of its message and, if it was raised, the innermost file
    and line number of its traceback."""
    lines = hide_secrets(str(error)).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{message} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else message


def call_or_raise_value_error(function: Callable[..., Any], *arguments: object) -> Any:
    """Call ``function``, a function of a user, with ``arguments`` and return its result.

    :raises ValueError: when ``function`` raises any exception, SystemExit too.
    """
    try:
        return function(*arguments)
    except BaseException as error:
        raise ValueError(f"the function raised {exception_message(error)}") from error
