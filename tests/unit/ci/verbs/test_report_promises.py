"""What the documentation promises of `nox -s report`."""

from pathlib import Path

import pytest

from core.run import RunOutputs
from core.stores.directory import DirectoryStore
from tests.kit.front_doors import run_ci
from tests.kit.runs import publish_torch, torch_version


def test_prints_the_versions_of_wheels_and_the_path_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = DirectoryStore(tmp_path / "out")
    publish_torch(store, RunOutputs(run_id="local", platform="linux"), tmp_path)

    status = run_ci("report", "--platform", "linux", "--store", tmp_path / "out")

    printed = "".join(capsys.readouterr())
    assert status == 0
    # once as part of the wheel's file name, once as its version
    assert printed.count(torch_version()) > printed.count(f"torch-{torch_version()}-")
    assert str(tmp_path / "out" / "local-linux" / "reports" / "index.html") in printed
