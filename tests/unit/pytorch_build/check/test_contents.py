from dataclasses import replace
from typing import Any

import pytest
from packaging.tags import parse_tag
from packaging.version import Version

from core.binaries.elf import ElfFacts
from pytorch_build.check import Expectation, Policy, SizeLimit, WheelView, contents, load_policy
from pytorch_build.check import contents as checks
from tests.unit.pytorch_build.check.conftest import make_view

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
def test_what_belongs_into_a_wheel(member: str) -> None:
    assert found(make_view(files={member: 10})) in (
        [],
        [("warning", "The wheel holds nothing but its metadata.")],
    )


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
def test_what_does_not(member: str, severity: str) -> None:
    findings = [
        one for one in found(make_view(files={member: 10, "torch/__init__.py": 1})) if member in one[1]
    ]
    assert [one[0] for one in findings] == [severity]


def test_rules_hold_for_their_distributions() -> None:
    core = make_view(
        "rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", files={"_rocm_sdk_core/lib/x.py": 5, "a.a": 1}
    )
    assert found(core) == []
    assert [one[0] for one in found(make_view(AUDIO, files={"torchaudio/lib/x.a": 5}, size=500_000))] == [
        "warning"
    ]


def test_one_finding_a_rule() -> None:
    files = {f"torch/x{index}.pyc": 1 for index in range(30)}
    ((_, message),) = found(make_view(files=files))
    assert message.endswith("(30 such files).")


def test_libraries_that_are_none() -> None:
    files = {"torch/a.so": 0, "torch/b.so.1": 900, "torch/c.so": CODE, "torch/d.dll": 0, "torch/e.sock": 0}
    assert found(make_view(files=files)) == [
        ("error", "torch/a.so is an empty file."),
        ("error", "torch/b.so.1 is no library, whatever its name."),
        ("error", "torch/d.dll is an empty file."),
    ]


SAMPLE = "torch-2.10.0a0+cpu.sample-cp312-cp312-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("size", "how", "severities"),
    [
        (999, {}, ["error"]),
        (1000, {}, []),
        (5000, {}, []),
        (5001, {}, ["warning"]),
        (9001, {}, ["error"]),
        # miniatures may be small, and what has no limits of any size
        (5, {"filename": SAMPLE}, []),
        (5, {"label": "sample"}, []),
        (5, {"filename": SAMPLE.replace("sample", "samples")}, ["error"]),
        (1, {"filename": AUDIO}, []),
    ],
)
def test_sizes(size: int, how: dict[str, Any], severities: list[str]) -> None:
    label = how.pop("label", "")
    assert [
        one[0] for one in found(make_view(**how, files={"a.py": 1}, size=size), LIMITS, label)
    ] == severities


DEVICE = ElfFacts(machine="EM_AMDGPU", kind="ET_DYN")
EXTENSION = "torch/_C.cpython-312-x86_64-linux-gnu.so"
PORTABLE = "torch-2.10.0a0+cpu-py3-none-any.whl"


@pytest.fixture
def sound() -> WheelView:
    return make_view(files={EXTENSION: CODE, "torch/x.py": 10}, requires=["rocm[libraries]==7.1"])


def judged(view: WheelView) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in contents.check_archive(view, None)]


def test_a_wheels_texts_are_compared_with_its_name(sound: WheelView) -> None:
    def texts(*, metadata: dict[str, Any] | None = None, **info: Any) -> list[tuple[str, str]]:
        assert sound.metadata is not None
        assert sound.info is not None
        changed = replace(sound.metadata, **(metadata or {})), replace(sound.info, **info)
        return judged(replace(sound, metadata=changed[0], info=changed[1]))

    # without readable texts only the rest is judged
    assert texts() == judged(replace(sound, metadata=None, info=None)) == []
    assert texts(metadata={"name": "pytorch", "version": Version("2.10.0")}) == [
        ("error", "METADATA is that of pytorch, the file name that of torch."),
        ("error", "METADATA says version 2.10.0, the file name 2.10.0a0+cpu."),
    ]
    ((severity, message),) = texts(metadata={"license": ""})
    assert (severity, "names no licence" in message) == ("warning", True)
    for tags in (frozenset({"cp311-cp311-linux_x86_64"}), frozenset[str]()):
        ((severity, message),) = texts(tags=tags)
        assert (severity, "the file name says cp312-cp312-linux_x86_64" in message) == ("error", True)
    assert texts(build="3") == [("error", "WHEEL has build tag '3'; the file name ''.")]
    assert judged(make_view("torch-2-1-cp312-cp312-linux_x86_64.whl", files={EXTENSION: CODE})) == []
    assert [one[0] for one in texts(wheel_version="2.0")] == ["error"]


def test_requirements_that_installers_or_indexes_refuse() -> None:
    wheel = make_view(files={EXTENSION: CODE}, requires=["a ==", "b @ https://example.com/b.whl"])
    first, second = judged(wheel)
    assert first[0] == second[0] == "error"
    assert "'a ==' cannot be read" in first[1]
    assert "direct reference" in second[1]


def test_compiled_files_and_platforms() -> None:
    assert [one[0] for one in judged(make_view(PORTABLE, files={"a/b.so": CODE}, purelib=True))] == ["error"]
    assert [one[0] for one in judged(make_view(PORTABLE, files={"a/b.dll": 5}, purelib=True))] == ["error"]
    assert [one[0] for one in judged(make_view(files={EXTENSION: CODE}, purelib=True))] == ["warning"]
    assert [one[0] for one in judged(make_view(files={"a.py": 1}))] == ["warning"]
    assert judged(make_view(PORTABLE, files={"a.py": 1, "kernel.hsaco": DEVICE}, purelib=True)) == []


@pytest.mark.parametrize(
    ("member", "filename", "fine"),
    [
        ("a.cpython-311-x86_64-linux-gnu.so", "torch-2-cp312-cp312-linux_x86_64.whl", False),
        ("a.cpython-313t-x86_64-linux-gnu.so", "torch-2-cp313-cp313t-linux_x86_64.whl", True),
        ("a.cpython-313-x86_64-linux-gnu.so", "torch-2-cp313-cp313t-linux_x86_64.whl", False),
        ("a.cp312-win_amd64.pyd", "torch-2-cp312-cp312-win_amd64.whl", True),
        ("a.cp311-win_amd64.pyd", "torch-2-cp312-cp312-win_amd64.whl", False),
        ("a.abi3.so", "torch-2-cp39-abi3-linux_x86_64.whl", True),
        ("a.cpython-311-x86_64-linux-gnu.so", "rocm_sdk_core-2-py3-none-linux_x86_64.whl", True),
    ],
)
def test_extensions_for_another_python(member: str, filename: str, fine: bool) -> None:  # noqa: FBT001 - a parameter
    messages = [message for _, message in judged(make_view(filename, files={member: CODE}))]
    assert (messages == []) is fine
    assert fine or "the wheel for" in messages[0]


ROCM = "torch-2.10.0a0+devrocm7.99.0.dev0.sample-cp312-cp312-linux_x86_64.whl"


def expected(
    distribution: str = "torch",
    version: str = "2.10.0a0+devrocm7.99.0.dev0.sample",
    python_tag: str = "cp312",
    requires: tuple[str, ...] = (),
) -> Expectation:
    return Expectation(distribution=distribution, version=version, python_tag=python_tag, requires=requires)


def expectations_found(view: WheelView, expectation: Expectation) -> list[str]:
    findings = [one for one in checks.check_archive(view, expectation) if one.check == "expected"]
    assert all(one.severity == "error" for one in findings)
    return [one.message for one in findings]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ([], "METADATA does not require rocm[libraries]==7.1."),
        (["rocm==7.1"], "METADATA requires rocm==7.1; rocm[libraries]==7.1 is expected."),
        (["rocm[libraries]==7.1.1"], "METADATA requires rocm[libraries]==7.1.1;"),
        (["rocm[libraries]>=7.1"], "METADATA requires rocm[libraries]>=7.1;"),
        (["rocm[libraries]==7.1; extra == 'gpu'"], "METADATA requires rocm[libraries]==7.1; extra"),
        (["rocm[", "torch"], "METADATA does not require"),
    ],
)
def test_requirements(requires: list[str], message: str) -> None:
    (text,) = expectations_found(
        make_view(ROCM, requires=requires), expected(requires=("rocm[libraries]==7.1",))
    )
    assert text.startswith(message)


@pytest.mark.parametrize(
    ("tag", "wanted", "fine"),
    [
        ("cp312-cp312-linux_x86_64", "cp312", True),
        ("cp312-cp312-linux_x86_64", "cp312-cp312", True),
        ("cp313-cp313t-linux_x86_64", "cp313-cp313t", True),
        ("cp313-cp313-linux_x86_64", "cp313-cp313t", False),
        ("cp313-cp313t-linux_x86_64", "cp313t", True),
        ("cp313-cp313t-linux_x86_64", "cp313", False),
        ("cp39-abi3-linux_x86_64", "cp312", True),
        ("cp313-abi3-linux_x86_64", "cp312", False),
        ("cp39-abi3-linux_x86_64", "cp313-cp313t", False),
        ("py3-none-any", "cp312", True),
        ("py2-none-any", "cp312", False),
        ("cp312-none-linux_x86_64", "cp312", True),
    ],
)
def test_python_tags(tag: str, wanted: str, fine: bool) -> None:  # noqa: FBT001 - a parameter
    (one,) = parse_tag(tag)
    assert contents.fits(one, wanted) is fine


def test_what_is_promised_is_compared_by_meaning() -> None:
    wheel = make_view(ROCM, requires=["rocm[libraries,devel] ==7.99.0.dev0+sample", "triton==3.6.0", "numpy"])
    requires = ("rocm[libraries]==7.99.0.dev0+sample", "triton==3.6.0")
    assert expectations_found(wheel, expected(requires=requires)) == []
    assert expectations_found(make_view(ROCM), expected(version="2.10.0a0+devrocm7.99.0.dev0-sample")) == []
    assert expectations_found(make_view(ROCM), expected(version="2.10.0a0")) == [
        "The version is 2.10.0a0+devrocm7.99.0.dev0.sample; 2.10.0a0 is expected."
    ]
    assert expectations_found(make_view(ROCM), expected(distribution="Torch_Audio", python_tag="cp313")) == [
        "This is torch; Torch_Audio is expected.",
        "The wheel is for cp312-cp312; cp313 is expected.",
    ]


SUFFIX = "+devrocm7.99.0.dev0.sample"


def test_every_build_has_its_version_and_requirements_without_a_lock(run: Any) -> None:
    assert contents.expectations(run.context()) == {}
    run.built("torch", version=f"2.10.0a0{SUFFIX}.dirty.1f3a9c20")
    # torch built alone requires no triton
    assert contents.expectations(run.context())["torch"].requires == ("rocm[libraries]==7.99.0.dev0+sample",)
    for project in ("triton", "audio", "vision", "apex"):
        run.built(project)
    found = contents.expectations(run.context())
    assert set(found) == {"triton", "torch", "torchaudio", "torchvision", "apex"}
    assert found["torch"].version == f"2.10.0a0{SUFFIX}.dirty.1f3a9c20"
    assert found["torch"].requires == ("rocm[libraries]==7.99.0.dev0+sample", f"triton==3.6.0{SUFFIX}")
    assert found["torchaudio"].requires == (f"torch==2.10.0a0{SUFFIX}.dirty.1f3a9c20",)
    assert found["torchvision"].requires == found["torchaudio"].requires
    assert found["apex"].requires == ()
    assert found["torch"].local_label == "sample"
    assert "gfx942" in found["torch"].gpu_targets


def test_wheels_on_a_prebuilt_torch_are_pinned_to_none_of_ours(run: Any) -> None:
    run.built("audio", gpu_family="cpu")
    run.built("torch", gpu_family="cpu", ref="nightly")
    found = contents.expectations(run.context("cpu"))
    assert "torch" not in found
    assert found["torchaudio"].requires == ()
