from dataclasses import replace

import pytest
from packaging.tags import parse_tag
from packaging.version import Version

from core.binaries.elf import ElfFacts
from pytorch_build.check import Finding, WheelView, metadata, tags
from tests.kit.findings import messages, severities
from tests.kit.views import wheel_view

HOST_CODE = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW")
GPU_CODE = ElfFacts(machine="EM_AMDGPU", kind="ET_DYN")
EXTENSION = "torch/_C.cpython-312-x86_64-linux-gnu.so"
PORTABLE = "torch-2.10.0a0+cpu-py3-none-any.whl"


def check_archive(view: WheelView) -> list[Finding]:
    """Return what is found in the metadata and the tags of a wheel."""
    return [*metadata.check(view), *tags.check(view)]


def sound_view() -> WheelView:
    """Return a wheel without a fault."""
    return wheel_view(files={EXTENSION: HOST_CODE, "torch/x.py": 10}, requires=["rocm[libraries]==7.1"])


def with_metadata(view: WheelView, *, name: str = "torch", version: str = "2.10.0a0+cpu") -> WheelView:
    """Return a wheel whose METADATA names another distribution or version."""
    assert view.metadata is not None
    return replace(view, metadata=replace(view.metadata, name=name, version=Version(version)))


def with_info(
    view: WheelView,
    *,
    tags: frozenset[str] = frozenset({"cp312-cp312-linux_x86_64"}),
    build: str = "",
    wheel_version: str = "1.0",
) -> WheelView:
    """Return a wheel whose WHEEL file says something else."""
    assert view.info is not None
    return replace(view, info=replace(view.info, tags=tags, build=build, wheel_version=wheel_version))


def test_finds_nothing_in_a_sound_wheel() -> None:
    assert check_archive(sound_view()) == []


def test_finds_nothing_where_metadata_cannot_be_read() -> None:
    # Its own finding tells that it cannot.
    assert check_archive(replace(sound_view(), metadata=None, info=None)) == []


def test_accepts_a_build_tag() -> None:
    view = wheel_view("torch-2-1-cp312-cp312-linux_x86_64.whl", files={EXTENSION: HOST_CODE})

    assert check_archive(view) == []


@pytest.mark.parametrize(
    ("view", "severity", "subject"),
    [
        pytest.param(with_metadata(sound_view(), name="pytorch"), "error", "pytorch", id="name"),
        pytest.param(with_metadata(sound_view(), version="2.10.0"), "error", "2.10.0,", id="version"),
        pytest.param(
            with_info(sound_view(), tags=frozenset({"cp311-cp311-linux_x86_64"})),
            "error",
            "cp312-cp312-linux_x86_64",
            id="tag",
        ),
        pytest.param(
            with_info(sound_view(), tags=frozenset()), "error", "cp312-cp312-linux_x86_64", id="no tag"
        ),
        pytest.param(with_info(sound_view(), build="3"), "error", "'3'", id="build tag"),
        pytest.param(with_info(sound_view(), wheel_version="2.0"), "error", "2.0", id="format version"),
    ],
)
def test_finds_a_file_name_that_the_wheel_contradicts(view: WheelView, severity: str, subject: str) -> None:
    (finding,) = check_archive(view)

    assert finding.severity == severity
    assert subject in finding.message


def test_warns_of_a_wheel_without_a_licence() -> None:
    view = sound_view()
    assert view.metadata is not None

    (finding,) = check_archive(replace(view, metadata=replace(view.metadata, license="")))

    assert finding.severity == "warning"
    assert "licence" in finding.message


@pytest.mark.parametrize("requirement", ["a ==", "b @ https://example.com/b.whl"])
def test_finds_a_requirement_that_installers_or_indexes_refuse(requirement: str) -> None:
    (finding,) = check_archive(wheel_view(files={EXTENSION: HOST_CODE}, requires=[requirement]))

    assert finding.severity == "error"
    assert requirement in finding.message


@pytest.mark.parametrize(
    ("view", "expected_severities"),
    [
        pytest.param(
            wheel_view(PORTABLE, files={"a/b.so": HOST_CODE}, is_pure=True),
            ["error"],
            id="library for any platform",
        ),
        pytest.param(
            wheel_view(PORTABLE, files={"a/b.dll": 5}, is_pure=True), ["error"], id="DLL for any platform"
        ),
        pytest.param(
            wheel_view(files={EXTENSION: HOST_CODE}, is_pure=True), ["warning"], id="library in a pure wheel"
        ),
        pytest.param(wheel_view(files={"a.py": 1}), ["warning"], id="platform without code"),
        pytest.param(
            wheel_view(PORTABLE, files={"a.py": 1, "kernel.hsaco": GPU_CODE}, is_pure=True),
            [],
            id="GPU code for any platform",
        ),
    ],
)
def test_compares_compiled_files_with_the_platform(view: WheelView, expected_severities: list[str]) -> None:
    assert severities(check_archive(view)) == expected_severities


@pytest.mark.parametrize(
    ("member", "filename", "wrong_tag"),
    [
        ("a.cpython-311-x86_64-linux-gnu.so", "torch-2-cp312-cp312-linux_x86_64.whl", "cp311"),
        ("a.cpython-313t-x86_64-linux-gnu.so", "torch-2-cp313-cp313t-linux_x86_64.whl", None),
        ("a.cpython-313-x86_64-linux-gnu.so", "torch-2-cp313-cp313t-linux_x86_64.whl", "cp313,"),
        ("a.cp312-win_amd64.pyd", "torch-2-cp312-cp312-win_amd64.whl", None),
        ("a.cp311-win_amd64.pyd", "torch-2-cp312-cp312-win_amd64.whl", "cp311"),
        ("a.abi3.so", "torch-2-cp39-abi3-linux_x86_64.whl", None),
        ("a.cpython-311-x86_64-linux-gnu.so", "rocm_sdk_core-2-py3-none-linux_x86_64.whl", None),
    ],
)
def test_finds_an_extension_module_for_another_python(
    member: str, filename: str, wrong_tag: str | None
) -> None:
    view = wheel_view(filename, files={member: HOST_CODE})

    wrong_tags = messages(check_archive(view))

    if wrong_tag is None:
        assert wrong_tags == []
    else:
        assert wrong_tag in wrong_tags[0]


@pytest.mark.parametrize(
    ("tag", "python", "is_accepted"),
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
def test_knows_which_tags_a_python_takes(tag: str, python: str, *, is_accepted: bool) -> None:
    (parsed_tag,) = parse_tag(tag)

    assert tags.accepts(python, parsed_tag) is is_accepted
