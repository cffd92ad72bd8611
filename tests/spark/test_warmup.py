"""The first queries of a worker: they leave no file behind, and one that does not end is an error that names it."""

from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.warmup import run_warm_up_queries
from tests.spark.conftest import Rig

pytestmark = pytest.mark.spark


def test_the_first_queries_leave_no_file(rig: Rig, tmp_path: Path) -> None:
    run_warm_up_queries(rig.session, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_first_query_that_does_not_end_is_an_error_and_leaves_no_file(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.spark.warmup.QUERY_TIMEOUT_S", 0.001)
    with pytest.raises(WorldError, match=r"the query of warm-up-rate-0 has not ended within 0\.001 s"):
        run_warm_up_queries(rig.session, tmp_path)
    assert list(tmp_path.iterdir()) == []
