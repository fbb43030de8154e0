from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.binaries.elf import ElfFacts
from pytorch_build.check import Expectation, contents
from pytorch_build.check.policy import Policy, SizeLimit, load_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytorch_build.check import WheelView

    MakeView = Callable[..., WheelView]

CODE = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW")
AUDIO = "torchaudio-2.10.0-cp312-cp312-linux_x86_64.whl"
LIMITS = Policy(
    exempt_labels=("sample",), sizes={"torch": SizeLimit(minimum=1000, warn_above=5000, error_above=9000)}
)


def found(view: WheelView, policy: Policy | None = None, label: str = "") -> list[tuple[str, str]]:
    expectation = Expectation(distribution="torch", version="1", local_label=label)
    return [(one.severity, one.message) for one in contents.check(view, expectation, policy or load_policy())]


@pytest.mark.parametrize(
    "member",
    [
        "torch/__init__.py",
        "torch/include/ATen/hip/HIPContext.h",
        "torch/share/cmake/Torch/TorchConfig.cmake",
        "torch/lib/libunwind.a",
        "torch/testing/_internal/common.py",
        "torch/_inductor/codegen/build_tools.py",
        "functorch/__init__.py",
        "torch-2.10.0a0+cpu.dist-info/licenses/home/LICENSE",
    ],
)
def test_what_belongs_into_a_wheel(view: MakeView, member: str) -> None:
    assert found(view(files={member: 10})) in ([], [("warning", "The wheel holds nothing but its metadata.")])


@pytest.mark.parametrize(
    ("member", "severity"),
    [
        ("torch/.git/HEAD", "error"),
        (".git", "error"),
        ("torch/__pycache__/x.cpython-312.pyc", "error"),
        ("torch/x.pyc", "error"),
        ("torch/csrc/x.o", "error"),
        ("torch/CMakeFiles/a.txt", "error"),
        ("build/lib/torch/x.py", "error"),
        ("home/me/x.py", "error"),
        ("torch/csrc/x.cpp.prehip", "error"),
        ("torch/x.py.orig", "error"),
        ("torch/csrc/hip/kernel.hip", "warning"),
        ("_rocm_sdk_core/lib/libamdhip64.so.7x", "error"),
        ("rocm_sdk/__init__.py", "error"),
        ("tests/test_torch.py", "error"),
        ("torch/test/assets/a.wav", "warning"),
        ("torch/.netrc", "error"),
    ],
)
def test_what_does_not(view: MakeView, member: str, severity: str) -> None:
    findings = [one for one in found(view(files={member: 10, "torch/__init__.py": 1})) if member in one[1]]
    assert [one[0] for one in findings] == [severity]


def test_rules_hold_for_their_distributions(view: MakeView) -> None:
    core = view("rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", files={"_rocm_sdk_core/lib/x.py": 5, "a.a": 1})
    assert found(core) == []
    assert [one[0] for one in found(view(AUDIO, files={"torchaudio/lib/x.a": 5}, size=500_000))] == [
        "warning"
    ]


def test_one_finding_a_rule(view: MakeView) -> None:
    files = {f"torch/x{index}.pyc": 1 for index in range(30)}
    ((_, message),) = found(view(files=files))
    assert message.endswith("(30 such files).")


def test_libraries_that_are_none(view: MakeView) -> None:
    files = {"torch/a.so": 0, "torch/b.so.1": 900, "torch/c.so": CODE, "torch/d.dll": 0, "torch/e.sock": 0}
    assert found(view(files=files)) == [
        ("error", "torch/a.so is an empty file."),
        ("warning", "torch/b.so.1 is not a library, whatever its name."),
        ("error", "torch/d.dll is an empty file."),
    ]


def test_a_wheel_of_nothing(view: MakeView) -> None:
    assert found(view(files={"torch-2.dist-info/METADATA": 1}))[0][0] == "warning"


def test_folders_of_the_build_machine(view: MakeView) -> None:
    wheel = view(files={"torch/a.cmake": 9}, mentions=[("torch/a.cmake", "/home/me/src")])
    assert found(wheel) == [
        ("warning", "torch/a.cmake mentions /home/me/src, a folder of the build machine.")
    ]


@pytest.mark.parametrize(
    ("size", "severities"),
    [(999, ["error"]), (1000, []), (5000, []), (5001, ["warning"]), (9001, ["error"])],
)
def test_sizes(view: MakeView, size: int, severities: list[str]) -> None:
    assert [one[0] for one in found(view(files={"a.py": 1}, size=size), LIMITS)] == severities


def test_miniatures_may_be_small(view: MakeView) -> None:
    sample = "torch-2.10.0a0+cpu.sample-cp312-cp312-linux_x86_64.whl"
    assert found(view(sample, files={"a.py": 1}, size=5), LIMITS) == []
    assert found(view(files={"a.py": 1}, size=5), LIMITS, label="sample") == []
    near = "torch-2.10.0a0+cpu.samples-cp312-cp312-linux_x86_64.whl"
    assert [one[0] for one in found(view(near, files={"a.py": 1}, size=5), LIMITS)] == ["error"]


def test_distributions_without_limits(view: MakeView) -> None:
    assert found(view(AUDIO, files={"a.py": 1}, size=1), LIMITS) == []


def test_a_real_torch_cannot_have_100_kb(view: MakeView) -> None:
    assert ("error", "size") in {
        (one.severity, one.check) for one in contents.check(view(size=100_000), None, load_policy())
    }
