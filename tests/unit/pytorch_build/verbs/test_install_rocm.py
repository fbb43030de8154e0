from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from core.env.installer import InstallerCall
from pytorch_build.sdk import RocmSdk
from pytorch_build.verbs import install_rocm
from rocm_packaging.origin import RocmSource
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult

Front = Callable[..., FrontDoorResult]

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"
SAMPLE = ("--torch-ref", "sample")


@dataclass
class Installation:
    """What fills the environment, and the questions that are put to the installed rocm_sdk."""

    preparations: list[tuple[list[InstallerCall], dict[str, Any]]]
    questions: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def installation(run: LocalRun, monkeypatch: pytest.MonkeyPatch, prepared: list[Any]) -> Installation:
    installation = Installation(preparations=prepared)

    def ask_sdk(_target: Any, source: RocmSource, **question: Any) -> RocmSdk:
        installation.questions.append({"version": source.version, "layout": source.layout, **question})
        return RocmSdk(
            version=source.version, root=run.root, bin=run.root, cmake=run.root, targets=("gfx942",)
        )

    monkeypatch.setattr(install_rocm, "require", lambda _python: run.target())
    monkeypatch.setattr(install_rocm, "ask_sdk", ask_sdk)
    return installation


def publish_core(run: LocalRun, tag: str) -> None:
    """Record ROCm's packages with another core package."""
    name = "rocm-sdk-core"
    files = [file for file in run.rocm() if file.distribution != name]
    core = run.publish(run.wheel(name, ROCM_VERSION, tag))
    run.record(f"build_rocm-{ROCM_VERSION}", *files, core)


def test_installs_the_runs_rocm_by_digest(front: Front, run: LocalRun, installation: Installation) -> None:
    run.rocm()
    profiler = run.wheel("rocm-profiler", ROCM_VERSION, "py3-none-linux_x86_64")
    run.record("more", run.publish(profiler))

    result = front("install-rocm", *SAMPLE, "--rocm-extras", "profiler", "--force")

    ((calls, options),) = installation.preparations
    tools, rocm = calls
    assert result.exit_code == 0, result.report
    assert tools.hashed
    assert rocm.hashed
    assert f"rocm-profiler=={ROCM_VERSION} --hash" in rocm.files[0].read_text()
    assert rocm.sources is not None
    assert rocm.sources.no_index
    assert options["force"]


def test_shows_what_the_installed_rocm_answers(
    front: Front, run: LocalRun, installation: Installation
) -> None:
    run.rocm()

    result = front("install-rocm", *SAMPLE)

    assert installation.questions == [
        {"version": ROCM_VERSION, "layout": "unsplit", "family": FAMILY, "targets": ("gfx942",)}
    ]
    for fact in (ROCM_VERSION, str(run.root), "gfx942"):
        assert fact in result.report


def test_installs_the_packages_that_the_run_has_now(
    front: Front, run: LocalRun, installation: Installation
) -> None:
    run.rocm()
    front("install-rocm", *SAMPLE)

    publish_core(run, "py3-none-manylinux_2_28_x86_64")
    front("install-rocm", *SAMPLE)

    (_first_calls, first_options), (calls, options) = installation.preparations
    (record,) = [record for record in run.context().records if record.stage.endswith(ROCM_VERSION)]
    core = next(file for file in record.files if file.distribution == "rocm-sdk-core")
    assert f"--hash=sha256:{core.sha256}" in calls[1].files[0].read_text()
    assert options["digest"] != first_options["digest"]


def test_leaves_an_environment_with_the_same_packages(
    front: Front, run: LocalRun, installation: Installation
) -> None:
    run.rocm()

    front("install-rocm", *SAMPLE)
    front("install-rocm", *SAMPLE)

    (_first_calls, first_options), (_calls, options) = installation.preparations
    assert options["digest"] == first_options["digest"]


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param(("--gpu-family", "cpu"), "cpu", id="family without ROCm"),
        pytest.param(("--rocm-version", "newest", "--rocm-find-links", "."), "newest", id="no version"),
    ],
)
def test_refuses_what_cannot_be_installed(front: Front, options: tuple[str, ...], name: str) -> None:
    result = front("install-rocm", *SAMPLE, *options)

    assert result.exit_code == 2
    assert name in result.errors[0]
