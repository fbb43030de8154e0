from typing import Any

import pytest

from pytorch_build.sdk import RocmSdk
from pytorch_build.verbs import install_rocm
from rocm_packaging.origin import RocmSource
from tests.unit.pytorch_build.conftest import ROCM

SAMPLE = ("--torch-ref", "sample")


@pytest.fixture
def installed(run: Any, monkeypatch: pytest.MonkeyPatch, prepared: list[Any]) -> list[Any]:
    """Keep the calls that would fill the environment, and the question put to it."""

    def ask(_target: Any, source: RocmSource, **asked: Any) -> RocmSdk:
        prepared.append({"version": source.version, "layout": source.layout, **asked})
        place = {"root": run.root, "bin": run.root, "cmake": run.root}
        return RocmSdk(version=source.version, **place, targets=("gfx942",))

    monkeypatch.setattr(install_rocm, "require", lambda _python: run.target())
    monkeypatch.setattr(install_rocm, "ask", ask)
    return prepared


def test_the_runs_rocm_is_installed_by_name_and_asked(front: Any, run: Any, installed: list[Any]) -> None:
    files = run.rocm()
    run.record("more", run.publish(run.wheel("rocm-profiler", ROCM, "py3-none-linux_x86_64")))
    answer = front("install-rocm", *SAMPLE, "--rocm-extras", "profiler", "--force")
    assert answer.code == 0, answer.said
    (calls, options), asked = installed
    assert [one.hashed for one in calls] == [True, True]
    assert "rocm-profiler==7.99.0.dev0+sample --hash" in calls[1].files[0].read_text()
    assert calls[1].sources.no_index
    assert options["force"]
    assert asked == {"version": ROCM, "layout": "unsplit", "family": "gfx94X-dcgpu", "targets": ("gfx942",)}
    for word in ("version", "root", "cmake", "gfx942"):
        assert word in answer.said
    # other digests are another environment
    name = "rocm-sdk-core"
    other = run.publish(run.wheel(name, ROCM, "py3-none-manylinux_2_28_x86_64"))
    run.record(f"build_rocm-{ROCM}", *(one for one in files if one.distribution != name), other)
    front("install-rocm", *SAMPLE)
    assert installed[2][1]["digest"] != options["digest"]


@pytest.mark.usefixtures("installed")
def test_what_cannot_be_installed_is_refused(front: Any) -> None:
    answer = front("install-rocm", *SAMPLE, "--gpu-family", "cpu")
    assert (answer.code, "Family cpu has no ROCm" in answer.said) == (2, True)
    answer = front("install-rocm", *SAMPLE, "--rocm-version", "newest", "--rocm-find-links", ".")
    assert (answer.code, "newest" in answer.said) == (2, True)
