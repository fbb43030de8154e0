from __future__ import annotations

import sys

import pytest
from packaging.tags import parse_tag

from core.errors import MissingInputError
from pytorch_build.check import dlls
from pytorch_build.check.policy import load_policy


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("KERNEL32.dll", "system"),
        ("dbghelp.DLL", "system"),
        ("api-ms-win-crt-heap-l1-1-0.dll", "system"),
        ("d3d12.dll", "system"),
        ("VCRUNTIME140_1.dll", "system"),
        ("MSVCP140.dll", "redistributable"),
        ("msvcp140_atomic_wait.dll", "redistributable"),
        ("MSVCP140D.dll", "debug"),
        ("python312_d.dll", "debug"),
        ("python312.dll", "python"),
        ("python313t.dll", "python"),
        ("amdhip64_7.dll", ""),
        ("libomp140.x86_64.dll", ""),
        ("zlib1.dll", ""),
    ],
)
def test_what_a_machine_gets_a_dll_from(name: str, origin: str) -> None:
    assert dlls.origin(name, load_policy().windows) == origin


def test_windows_on_arm_has_dlls_of_its_own() -> None:
    amd, arm = dlls.system_dlls("amd64")[0], dlls.system_dlls("arm64")[0]
    assert "kernel32.dll" in amd & arm
    assert amd != arm


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        ("cp312-cp312-win_amd64", {"python312.dll", "python3.dll"}),
        ("cp313-cp313t-win_amd64", {"python313t.dll", "python3t.dll"}),
        ("cp310-abi3-win_amd64", {"python3.dll"}),
        ("py3-none-win_amd64", set()),
    ],
)
def test_a_wheels_tags_say_which_python_it_may_be_linked_to(tags: str, names: set[str]) -> None:
    assert dlls.python_dlls(parse_tag(tags)) == names


def test_a_tool_without_its_lock_says_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "delvewheel", None)
    dlls.system_dlls.cache_clear()
    with pytest.raises(MissingInputError, match="delvewheel"):
        dlls.system_dlls("amd64")
    dlls.system_dlls.cache_clear()
