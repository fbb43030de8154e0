"""Jobs that upload and index into one prefix of a bucket at once: fewer than in a folder, as moto is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core import parallel
from core.stores.location import open_store
from tests.unit.ci.publish.index.memory_store import PREFIX, index, publish, wheel_name

if TYPE_CHECKING:
    from pathlib import Path


JOBS = 10


@pytest.mark.usefixtures("s3")
def test_jobs_at_once_end_with_a_complete_page_in_a_bucket(tmp_path: Path) -> None:
    def job(number: int) -> None:
        store = open_store("s3://bucket", root=tmp_path)
        publish(store, wheel_name("torch", f"2.{number}"))
        index(store)

    parallel.each(job, range(JOBS), jobs=JOBS)
    store = open_store("s3://bucket", root=tmp_path)
    pages = [
        store.read(f"{PREFIX}/{path}").decode()
        for path in ("index.html", "simple/torch/index.html", "simple/torch/index.json")
    ]
    for number in range(JOBS):
        assert all(wheel_name("torch", f"2.{number}") in page for page in pages)
    before = {one.key: one.etag for one in store.list("run")}
    assert index(store).written == ()
    assert {one.key: one.etag for one in store.list("run")} == before
