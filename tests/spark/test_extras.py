"""Extras of the package coterie, and the error if one is missing."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from coterie.spark.extras import MODULE_BY_EXTRA, missing_extra_message

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("extra", MODULE_BY_EXTRA)
def test_the_error_for_a_missing_package_names_the_extra_that_installs_it(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, MODULE_BY_EXTRA[extra], None)
    sentence = missing_extra_message(extra)
    assert sentence is not None
    assert MODULE_BY_EXTRA[extra] in sentence
    assert f"pip install 'coterie[{extra}]'" in sentence


def test_a_package_that_can_be_imported_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", sys)
    assert missing_extra_message("postgres") is None


def test_each_extra_installs_its_module_within_bounds_and_all_installs_every_extra() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    for extra, module in MODULE_BY_EXTRA.items():
        (requirement,) = extras[extra]
        assert re.fullmatch(rf"{module}(\[binary\])?>=[\d.]+,<[\d.]+", requirement)
    (all_of,) = extras["all"]
    assert set(all_of.removeprefix("coterie[").removesuffix("]").split(",")) == extras.keys() - {"all", "dev"}
