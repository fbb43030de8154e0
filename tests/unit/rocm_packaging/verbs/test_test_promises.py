"""What the documentation promises of `test_rocm`."""

from pathlib import Path

import pytest

from core.cli import main
from rocm_packaging.__main__ import VERBS
from rocm_packaging.selftest import TestRequest


def test_no_install_tests_what_the_environment_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[TestRequest] = []
    monkeypatch.setattr("rocm_packaging.verbs.test.run_tests", requests.append)
    # a store without packages, so that looking for some would fail
    options = ["--no-install", "--gpu-family=gfx94X-dcgpu", f"--store={tmp_path}"]

    status = main("rocm_packaging", "", VERBS, ["test", *options])

    assert status == 0
    assert [request.source for request in requests] == [None]
