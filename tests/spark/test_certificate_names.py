"""The expected names of certificates in `tests.certificate_subjects` are those of Java's class X500Principal."""

from typing import Any

import pytest

from tests.certificate_subjects import SUBJECTS, subject
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


async def test_java_writes_the_expected_names(rig: Rig) -> None:
    jvm: Any = rig.session.sparkContext._jvm
    principal = jvm.javax.security.auth.x500.X500Principal
    assert [principal(subject(parts)).getName() for parts, _ in SUBJECTS] == [name for _, name in SUBJECTS]
