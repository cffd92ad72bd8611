"""The case studies of K848C as transcripts. ``SCENARIOS=rewrite`` writes them again; review the difference."""

import os
from pathlib import Path

import pytest

from tests.groups.connect.transcript import play

CASE_STUDIES = sorted((Path(__file__).parent / "case_studies").glob("*.txt"))


@pytest.mark.parametrize("path", CASE_STUDIES, ids=lambda path: path.stem)
def test_a_case_study_is_played_as_it_is_written(path: Path) -> None:
    text = path.read_text()
    played = play(text)
    if os.environ.get("SCENARIOS") == "rewrite":
        path.write_text(played)
    assert played == text


def test_all_case_studies_are_there() -> None:
    assert [path.stem for path in CASE_STUDIES] == ["w1_joins", "w2_joins", "worker_bounces", "worker_leaves"]
