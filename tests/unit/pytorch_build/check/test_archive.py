from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from core.binaries.elf import ElfFacts
from pytorch_build.check import contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytorch_build.check import WheelView

CODE = ElfFacts(machine="EM_X86_64", kind="ET_DYN", stack="RW")
DEVICE = ElfFacts(machine="EM_AMDGPU", kind="ET_DYN")
EXTENSION = "torch/_C.cpython-312-x86_64-linux-gnu.so"
PORTABLE = "torch-2.10.0a0+cpu-py3-none-any.whl"


@pytest.fixture
def sound(view: Callable[..., WheelView]) -> WheelView:
    return view(files={EXTENSION: CODE, "torch/x.py": 10}, requires=["rocm[libraries]==7.1"])


def found(view: WheelView) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in contents.check_archive(view)]


def test_a_sound_wheel(sound: WheelView) -> None:
    assert found(sound) == []


def test_without_readable_texts_only_the_rest_is_judged(sound: WheelView) -> None:
    assert found(replace(sound, metadata=None, info=None)) == []


def test_names_and_versions_that_differ(sound: WheelView) -> None:
    assert sound.metadata is not None
    other = replace(sound.metadata, name="pytorch", version=Version("2.10.0"))
    assert found(replace(sound, metadata=other)) == [
        ("error", "METADATA is that of pytorch, the file name that of torch."),
        ("error", "METADATA says version 2.10.0, the file name 2.10.0a0+cpu."),
    ]


def test_a_wheel_without_a_licence(sound: WheelView) -> None:
    assert sound.metadata is not None
    ((severity, message),) = found(replace(sound, metadata=replace(sound.metadata, license="")))
    assert severity == "warning"
    assert "names no licence" in message


def test_requirements_that_installers_or_indexes_refuse(view: Callable[..., WheelView]) -> None:
    wheel = view(files={EXTENSION: CODE}, requires=["a ==", "b @ https://example.com/b.whl"])
    first, second = found(wheel)
    assert first[0] == second[0] == "error"
    assert "'a ==' cannot be read" in first[1]
    assert "direct reference" in second[1]


def test_tags_that_differ(sound: WheelView) -> None:
    assert sound.info is not None
    for tags in (frozenset({"cp311-cp311-linux_x86_64"}), frozenset[str]()):
        ((severity, message),) = found(replace(sound, info=replace(sound.info, tags=tags)))
        assert severity == "error"
        assert "the file name says cp312-cp312-linux_x86_64" in message


def test_build_tags_that_differ(sound: WheelView, view: Callable[..., WheelView]) -> None:
    assert sound.info is not None
    assert found(replace(sound, info=replace(sound.info, build="3"))) == [
        ("error", "WHEEL has build tag '3'; the file name ''.")
    ]
    assert found(view("torch-2-1-cp312-cp312-linux_x86_64.whl", files={EXTENSION: CODE})) == []


def test_a_format_of_the_future(sound: WheelView) -> None:
    assert sound.info is not None
    assert [one[0] for one in found(replace(sound, info=replace(sound.info, wheel_version="2.0")))] == [
        "error"
    ]


def test_compiled_files_and_platforms(view: Callable[..., WheelView]) -> None:
    assert [one[0] for one in found(view(PORTABLE, files={"a/b.so": CODE}, purelib=True))] == ["error"]
    assert [one[0] for one in found(view(PORTABLE, files={"a/b.dll": 5}, purelib=True))] == ["error"]
    assert [one[0] for one in found(view(files={EXTENSION: CODE}, purelib=True))] == ["warning"]
    assert [one[0] for one in found(view(files={"a.py": 1}))] == ["warning"]
    assert found(view(PORTABLE, files={"a.py": 1, "kernel.hsaco": DEVICE}, purelib=True)) == []


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
def test_extensions_for_another_python(
    view: Callable[..., WheelView],
    member: str,
    filename: str,
    fine: bool,  # noqa: FBT001 - a parameter
) -> None:
    messages = [message for _, message in found(view(filename, files={member: CODE}))]
    assert (messages == []) is fine
    assert fine or "the wheel for" in messages[0]
