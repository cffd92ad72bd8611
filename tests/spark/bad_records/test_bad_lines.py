"""Lines of files that do not fit the schema: they fail the task, or are bad records. Rows are counted without Spark."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.spark.bad_records.sifting import dead_letters_in
from tests.spark.conftest import Rig, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

CSV = ["row,name", "1,a", "x,b", "2,c,d", "3,e", "4"]
JSON = ['{"row": 1, "name": "a"}', '{"row": "x"}', "no JSON", '{"row": 3}', '{"row": 4', "[5]"]
LINES = {"csv": CSV, "json": JSON}
MALFORMED = {"csv": ["x,b", "2,c,d", "4"], "json": ['{"row": "x"}', "no JSON", '{"row": 4', "[5]"]}
ODD = {
    "transforms": "odd",
    "transforms.odd.type": "Filter",
    "transforms.odd.condition": "row < 3 OR raise_error('odd') IS NULL",
}
"""A good line whose row is bad for a transform."""


def config_of(rig: Rig, folder: Path, format_: str, **keys: str) -> dict[str, str]:
    config = rig.config(folder, source__format=format_, source__schema="row BIGINT, name STRING", **keys)
    if format_ != "csv":
        del config["source.option.header"]
    return config


def write_lines(folder: Path, format_: str) -> Path:
    file = folder / "in" / f"a b.{format_}"
    (folder / "aside").write_text("\n".join(LINES[format_]) + "\n")
    return (folder / "aside").rename(file)


def uri_of(file: Path) -> str:
    """The URI of a file as in Spark's ``_metadata.file_path``."""
    return f"file:{quote(str(file))}"


@pytest.mark.parametrize("format_", ["csv", "json"])
async def test_a_line_that_does_not_fit_the_schema_is_a_bad_record_with_its_text_and_its_file(
    rig: Rig, tmp_path: Path, format_: str
) -> None:
    config = config_of(rig, tmp_path, format_, errors__tolerance="all") | ODD
    config["errors.deadletterqueue.path"] = str(tmp_path / "bad")
    assert await rig.config_errors(config, ()) == {}
    file = write_lines(tmp_path, format_)
    start = await rig.start(config, f"bad-lines-{format_}")
    await rig.wait_until(lambda: any((tmp_path / "bad").glob("*.parquet")))
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(tmp_path / "out") == [1]
    dead_letters = dead_letters_in(tmp_path / "bad")
    (odd,) = [dead_letter for dead_letter in dead_letters if dead_letter["stage"] == "TRANSFORMATION"]
    assert json.loads(odd["value"]) == ({"row": 3, "name": "e"} if format_ == "csv" else {"row": 3})
    malformed = [dead_letter for dead_letter in dead_letters if dead_letter is not odd]
    assert sorted(dead_letter["value"].decode() for dead_letter in malformed) == sorted(MALFORMED[format_])
    assert {(dead_letter["stage"], dead_letter["class_name"]) for dead_letter in malformed} == {
        ("TASK_POLL", "FileSource")
    }
    uri = uri_of(file)
    message = f"a line of {uri} is not {format_.upper()} with the columns of the schema"
    assert {dead_letter["exception_message"] for dead_letter in malformed} == {message}
    assert [dead_letter["headers"] for dead_letter in dead_letters] == [[{"key": "file", "value": uri.encode()}]] * len(
        dead_letters
    )
    assert all(abs(dead_letter["timestamp"].timestamp() - file.stat().st_mtime) < 0.01 for dead_letter in dead_letters)
    assert {
        (dead_letter["topic"], dead_letter["partition"], dead_letter["offset"]) for dead_letter in dead_letters
    } == {(None, None, None)}


async def test_bad_lines_are_dropped_and_logged_if_no_dead_letter_queue_is_configured(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"errors.tolerance": "all", "errors.log.enable": "true", "errors.log.include.messages": "true"}
    file = write_lines(Path(rig.config(tmp_path)["source.path"]).parent, "csv")
    start = await rig.start(config_of(rig, tmp_path, "csv") | keys, "left-out-lines")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1, 3])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert line.startswith("Task left-out-lines-0: 3 bad records were left out")
    assert f"a line of {uri_of(file)} is not CSV" in line
    assert "None" not in line


@pytest.mark.parametrize("format_", ["parquet", "text"])
async def test_a_row_of_another_format_that_a_transform_refuses_is_a_bad_record_with_its_columns(
    rig: Rig, tmp_path: Path, format_: str
) -> None:
    config = config_of(rig, tmp_path, format_, errors__tolerance="all")
    config |= ODD | {"errors.deadletterqueue.path": str(tmp_path / "bad")}
    if format_ == "text":
        del config["source.schema"]
        config["transforms.odd.condition"] = "value < '3' OR raise_error('odd') IS NULL"
    assert await rig.config_errors(config, ()) == {}
    rows = rig.session.range(1, 4).selectExpr("id AS row", "string(NULL) AS name").coalesce(1)
    (rows.selectExpr("string(row) AS value") if format_ == "text" else rows).write.format(format_).save(
        str(tmp_path / "aside")
    )
    (file,) = (tmp_path / "aside").glob("part-*")
    file.rename(tmp_path / "in" / file.name)
    start = await rig.start(config, f"bad-rows-{format_}")
    await rig.wait_until(lambda: any((tmp_path / "bad").glob("*.parquet")))
    await rig.runtime.stop(start.task, grace_ms=10_000)
    (dead_letter,) = dead_letters_in(tmp_path / "bad")
    assert dead_letter["value"] == (b"3" if format_ == "text" else b'{"row":3}')
    assert dead_letter["stage"] == "TRANSFORMATION"
    assert sorted(map(int, rows_of(tmp_path / "out", "value" if format_ == "text" else "row"))) == [1, 2]


@pytest.mark.parametrize("format_", ["csv", "json"])
async def test_without_tolerance_a_bad_line_fails_the_task_with_its_file_and_the_parsed_values(
    rig: Rig, tmp_path: Path, format_: str
) -> None:
    config = config_of(rig, tmp_path, format_)
    file = write_lines(tmp_path, format_)
    start = await rig.start(config, f"failing-lines-{format_}")
    died = await rig.end_of(start.task)
    await rig.runtime.stop(start.task, grace_ms=0)
    first = died.trace.partition("\n")[0]
    assert file.as_uri() in first
    assert "x" in first
    assert rows_of(tmp_path / "out") == []
