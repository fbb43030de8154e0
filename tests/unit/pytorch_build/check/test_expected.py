from dataclasses import replace
from pathlib import Path

import pytest

from core.cli.options import Common
from core.families import family
from pytorch_build.check import Expectation, WheelView, expected
from pytorch_build.context import Context
from pytorch_build.refs.torch_refs import torch_ref
from tests.kit.findings import messages, severities
from tests.kit.runs import write_record
from tests.kit.views import wheel_view

ROCM_SUFFIX = "+devrocm7.99.0.dev0.sample"
TORCH_VERSION = f"2.10.0a0{ROCM_SUFFIX}"
TORCH_ROCM = f"torch-{TORCH_VERSION}-cp312-cp312-linux_x86_64.whl"


def expect(
    *,
    distribution: str = "torch",
    version: str = TORCH_VERSION,
    python_tag: str = "cp312",
    requires: tuple[str, ...] = (),
) -> Expectation:
    """Return what is expected of a torch wheel."""
    return Expectation(distribution=distribution, version=version, python_tag=python_tag, requires=requires)


def unmet_expectations(view: WheelView, expectation: Expectation) -> list[str]:
    """Return the messages of what a wheel is not, each of which is an error."""
    findings = [*expected.check(replace(view, expectation=expectation))]
    assert set(severities(findings)) <= {"error"}
    return messages(findings)


@pytest.mark.parametrize(
    "requires",
    [
        pytest.param([], id="none"),
        pytest.param(["rocm==7.1"], id="no extra"),
        pytest.param(["rocm[libraries]==7.1.1"], id="other version"),
        pytest.param(["rocm[libraries]>=7.1"], id="any later version"),
        pytest.param(["rocm[libraries]==7.1; extra == 'gpu'"], id="under a condition"),
        pytest.param(["rocm[", "torch"], id="unreadable"),
    ],
)
def test_finds_an_expected_requirement_that_is_missing(requires: list[str]) -> None:
    view = wheel_view(TORCH_ROCM, requires=requires)

    (message,) = unmet_expectations(view, expect(requires=("rocm[libraries]==7.1",)))

    assert "rocm[libraries]==7.1" in message


def test_compares_requirements_by_their_meaning() -> None:
    view = wheel_view(
        TORCH_ROCM, requires=["rocm[libraries,devel] ==7.99.0.dev0+sample", "triton==3.6.0", "numpy"]
    )
    requires = ("rocm[libraries]==7.99.0.dev0+sample", "triton==3.6.0")

    assert unmet_expectations(view, expect(requires=requires)) == []


def test_compares_versions_by_their_meaning() -> None:
    view = wheel_view(TORCH_ROCM)

    assert unmet_expectations(view, expect(version=TORCH_VERSION.replace(".sample", "-sample"))) == []


@pytest.mark.parametrize(
    ("expectation", "subject"),
    [
        (expect(version="2.10.0a0"), f"{TORCH_VERSION}; 2.10.0a0 "),
        (expect(distribution="Torch_Audio"), "Torch_Audio"),
        (expect(python_tag="cp313"), "cp313"),
    ],
    ids=["version", "distribution", "Python"],
)
def test_finds_a_wheel_that_is_not_the_expected_one(expectation: Expectation, subject: str) -> None:
    (message,) = unmet_expectations(wheel_view(TORCH_ROCM), expectation)

    assert subject in message


# Expectations from a run's records

FAMILY = "gfx94X-dcgpu"
ROCM_VERSION = "7.99.0.dev0+sample"


def run_context(folder: Path, gpu_family: str = FAMILY) -> Context:
    """Return the context of a run below a folder that builds the sample."""
    return Context(
        common=Common(root=folder, torch_ref="sample", gpu_family=gpu_family),
        ref=torch_ref("sample"),
        gpu_family=gpu_family,
        gpu_targets=family(gpu_family).targets,
    )


def record_build(context: Context, component: str, version: str, *, ref: str = "sample") -> None:
    """Write the record of a component's build."""
    write_record(
        context.common.open_store(),
        context.common.outputs,
        step=f"build_{component}",
        family=context.gpu_family,
        python="cp312",
        torch_ref=ref,
        inputs={
            "version": version,
            "rocm": [ROCM_VERSION, "unsplit", {}] if context.gpu else None,
            "gpu_targets": list(context.gpu_targets),
        },
    )


def test_expects_nothing_of_a_run_without_builds(tmp_path: Path) -> None:
    assert expected.expectations(run_context(tmp_path)) == {}


def test_expects_no_triton_where_torch_was_built_alone(tmp_path: Path) -> None:
    context = run_context(tmp_path)
    record_build(context, "torch", TORCH_VERSION)

    torch = expected.expectations(context)["torch"]

    assert torch.requires == (f"rocm[libraries]=={ROCM_VERSION}",)


def test_expects_what_was_built_of_a_runs_wheels(tmp_path: Path) -> None:
    context = run_context(tmp_path)
    version = f"{TORCH_VERSION}.dirty.1f3a9c20"
    record_build(context, "torch", version)
    record_build(context, "triton", f"3.6.0{ROCM_SUFFIX}")
    record_build(context, "audio", f"2.10.0a0{ROCM_SUFFIX}")
    record_build(context, "vision", f"0.25.0a0{ROCM_SUFFIX}")
    record_build(context, "apex", f"1.10.0{ROCM_SUFFIX}")

    expectations = expected.expectations(context)

    assert {name: expectation.requires for name, expectation in expectations.items()} == {
        "apex": (),
        "torch": (f"rocm[libraries]=={ROCM_VERSION}", f"triton==3.6.0{ROCM_SUFFIX}"),
        "torchaudio": (f"torch=={version}",),
        "torchvision": (f"torch=={version}",),
        "triton": (),
    }
    assert expectations["torch"].version == version
    assert not expectations["torch"].has_full_size
    assert expectations["torch"].gpu_targets == family(FAMILY).targets


def test_expects_no_torch_of_ours_on_a_prebuilt_one(tmp_path: Path) -> None:
    context = run_context(tmp_path, "cpu")
    record_build(context, "audio", "2.10.0a0+cpu.sample")
    record_build(context, "torch", "2.10.0a0+cpu", ref="nightly")

    expectations = expected.expectations(context)

    assert "torch" not in expectations
    assert expectations["torchaudio"].requires == ()
