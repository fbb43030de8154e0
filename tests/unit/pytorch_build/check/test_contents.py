import pytest

from core.binaries.elf import ElfFacts
from pytorch_build.check import Expectation, Finding, WheelView, contents
from pytorch_build.check.policy import Policy, load_policy
from pytorch_build.components.component import WheelSizes
from tests.kit.findings import members, severities
from tests.kit.views import judged_by, wheel_view

HOST_CODE = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW")
AUDIO = "torchaudio-2.10.0-cp312-cp312-linux_x86_64.whl"
VISION = "torchvision-0.25.0-cp312-cp312-linux_x86_64.whl"
TORCH = "torch-2.10.0-cp312-cp312-linux_x86_64.whl"
SAMPLE = "torch-2.10.0a0+cpu.sample-cp312-cp312-linux_x86_64.whl"


def check_contents(
    view: WheelView, policy: Policy | None = None, *, has_full_size: bool = True
) -> list[Finding]:
    """Return what is found in the contents of a torch wheel."""
    expectation = Expectation(distribution="torch", version="1", has_full_size=has_full_size)
    judged_view = judged_by(view, policy or load_policy(), expectation)
    rules = (contents.check, contents.note_user_policy, contents.check_size)
    return [finding for rule in rules for finding in rule(judged_view)]


# What loads ROCm


def test_requires_a_torch_for_rocm_to_load_it() -> None:
    view = wheel_view(files={"torch/__init__.py": 1}, requires=["rocm[libraries]==7.1"])

    (finding,) = check_contents(view)

    assert finding.severity == "error"
    assert "torch/_rocm_init.py" in finding.message


@pytest.mark.parametrize(
    ("filename", "members", "requires"),
    [
        pytest.param(None, ["torch/_rocm_init.py"], ["rocm[libraries]==7.1"], id="loads it"),
        pytest.param(None, ["torch/__init__.py"], ["filelock"], id="requires none"),
        pytest.param(VISION, ["torchvision/__init__.py"], ["rocm[libraries]==7.1"], id="torch loads it"),
    ],
)
def test_accepts_a_wheel_whose_rocm_is_loaded(
    filename: str | None, members: list[str], requires: list[str]
) -> None:
    view = wheel_view(filename or TORCH, files=dict.fromkeys(members, 1), requires=requires)

    assert check_contents(view) == []


# Members


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
def test_accepts_a_member_that_belongs_into_a_wheel(member: str) -> None:
    view = wheel_view(files={member: 10, "torch/version.py": 1})

    assert check_contents(view) == []


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
        ("torch/test/assets/a.wav", "warning"),
        ("torch/.netrc", "error"),
    ],
)
def test_finds_a_member_that_does_not_belong_into_a_wheel(member: str, severity: str) -> None:
    view = wheel_view(files={member: 10, "torch/__init__.py": 1})

    findings = [finding for finding in check_contents(view) if finding.where == member]

    assert severities(findings) == [severity]


def test_lets_rocms_wheels_hold_rocm() -> None:
    core = wheel_view(
        "rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", files={"_rocm_sdk_core/lib/x.py": 5, "a.a": 1}
    )

    assert check_contents(core) == []


def test_finds_a_static_library_in_a_wheel_other_than_torch() -> None:
    audio = wheel_view(AUDIO, files={"torchaudio/lib/x.a": 5}, size=500_000)

    assert severities(check_contents(audio)) == ["warning"]


def test_lets_a_wheel_that_ships_its_sources_hold_those_that_hipify_made() -> None:
    member = "apex/contrib/csrc/hip/kernel.hip"
    apex = wheel_view("apex-1.10-cp312-cp312-linux_x86_64.whl", files={member: 5}, size=500_000)
    audio = wheel_view(AUDIO, files={member: 5}, size=500_000)

    assert check_contents(apex) == []
    assert severities(check_contents(audio)) == ["warning"]


def test_warns_of_a_wheel_that_holds_only_metadata() -> None:
    view = wheel_view(files={"torch-2.10.0a0+cpu.dist-info/METADATA": 10})

    assert severities(check_contents(view)) == ["warning"]


def test_reports_many_members_of_one_kind_once() -> None:
    view = wheel_view(files={f"torch/x{index}.pyc": 1 for index in range(30)})

    (finding,) = check_contents(view)

    assert "30" in finding.message


def test_finds_libraries_that_hold_no_code() -> None:
    view = wheel_view(
        files={
            "torch/empty.so": 0,
            "torch/text.so.1": 900,
            "torch/library.so": HOST_CODE,
            "torch/empty.dll": 0,
            "torch/empty.sock": 0,
        }
    )

    findings = check_contents(view)

    assert severities(findings) == ["error"] * 3
    assert members(findings) == ["torch/empty.dll", "torch/empty.so", "torch/text.so.1"]


# Sizes

LIMITS = Policy(
    exempt_labels=("sample",), sizes={"torch": WheelSizes(minimum=1000, warn_above=5000, error_above=9000)}
)


@pytest.mark.parametrize(
    ("size", "expected_severities"),
    [(999, ["error"]), (1000, []), (5000, []), (5001, ["warning"]), (9001, ["error"])],
)
def test_compares_the_size_with_its_limits(size: int, expected_severities: list[str]) -> None:
    view = wheel_view(files={"a.py": 1}, size=size)

    assert severities(check_contents(view, LIMITS)) == expected_severities


@pytest.mark.parametrize(
    ("filename", "has_full_size", "expected_severities"),
    [
        pytest.param(SAMPLE, True, [], id="miniature by its version"),
        pytest.param(SAMPLE.replace("+cpu.sample", "+cpu"), False, [], id="miniature by its ref"),
        pytest.param(SAMPLE.replace("sample", "samples"), True, ["error"], id="other label"),
        pytest.param(AUDIO, True, [], id="no limits"),
    ],
)
def test_lets_miniatures_be_small(
    filename: str, expected_severities: list[str], *, has_full_size: bool
) -> None:
    view = wheel_view(filename, files={"a.py": 1}, size=5)

    assert severities(check_contents(view, LIMITS, has_full_size=has_full_size)) == expected_severities
