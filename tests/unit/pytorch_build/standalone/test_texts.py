import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from core.errors import WheelError
from pytorch_build.build.plans.torch import rocm_init_text
from pytorch_build.standalone import fat

NONE = fat.Licenses(expression="", files={})
UPSTREAM = Path(__file__).with_name("recorded").joinpath("load-dlls.txt").read_text()


def test_what_our_builds_write_is_read_back() -> None:
    text = rocm_init_text(("amd_comgr", "amdhip64"), rocm_version="7.1.0rc2")
    assert fat.read_rocm_init(text, "x") == fat.Loader(names=("amd_comgr", "amdhip64"), version="7.1.0rc2")
    text = "import rocm_sdk as sdk\ndef initialize():\n  sdk.initialize_process(preload_shortnames=('a',))\n"
    assert fat.read_rocm_init(text, "x") == fat.Loader(names=("a",), version=""), "a call without a version"


@pytest.mark.parametrize(
    "text",
    [
        "def initialize(): pass\n",
        "def initialize(:\n",
        "rocm_sdk.initialize_process(preload_shortnames=names())\n",
        "rocm_sdk.initialize_process(preload_shortnames='abc')\n",
        "rocm_sdk.initialize_process(preload_shortnames=[1])\n",
        "a.initialize_process()\nb.initialize_process()\n",
    ],
)
def test_a_loader_that_is_not_understood_is_refused_by_name(text: str) -> None:
    with pytest.raises(WheelError, match=r"w\.whl: torch/_rocm_init\.py cannot be made stand-alone"):
        fat.read_rocm_init(text, "w.whl: torch/_rocm_init.py")


def loaded(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> list[str]:
    calls: list[str] = []
    if monkeypatch:
        monkeypatch.setattr(os, "add_dll_directory", lambda path: calls.append(f"+{path}"), raising=False)
        monkeypatch.setattr(ctypes, "CDLL", lambda path, **_mode: calls.append(path))
    names: dict[str, Any] = {"__file__": str(folder / "_rocm_init.py")}
    exec(compile(text, "x", "exec"), names)  # noqa: S102 - the text is ours
    names["initialize"]()
    return calls


def test_the_loader_loads_the_wheels_files_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = fat.standalone_init(["core/lib/libb.so.1", "core/lib/liba.so.2"], windows=False)
    root = tmp_path / "lib" / "rocm" / "core" / "lib"
    with pytest.raises(ImportError, match=r"ROCm's core/lib/libb\.so\.1, which is part of this wheel"):
        loaded(text, tmp_path)
    assert loaded(text, tmp_path, monkeypatch) == [str(root / "libb.so.1"), str(root / "liba.so.2")]
    # on Windows the folder is added first
    folder = tmp_path / "lib" / "rocm" / "bin"
    text = fat.standalone_init(["bin/amdhip64_7.dll"], windows=True)
    assert loaded(text, tmp_path, monkeypatch) == [f"+{folder}", str(folder / "amdhip64_7.dll")]


def test_torchs_init_looks_into_the_wheels_rocm_first() -> None:
    patched = fat.patched_torch_init(UPSTREAM, "torch/__init__.py")
    lines = patched.splitlines()
    at = lines.index("        for dll_path in dll_paths:")
    assert lines[at - 1] == '        dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'
    assert [line for line in lines if "insert" not in line] == UPSTREAM.splitlines()
    compile(patched, "torch/__init__.py", "exec")
    assert fat.patched_torch_init(UPSTREAM * 2, "x").count("dll_paths.insert(0,") == 2


def test_a_file_without_the_loop_or_with_the_patch_is_refused() -> None:
    with pytest.raises(WheelError, match="has no line 'for dll_path in dll_paths:'"):
        fat.patched_torch_init("import os\n", "w.whl: torch/__init__.py")
    with pytest.raises(WheelError, match="stand-alone"):
        fat.patched_torch_init(fat.patched_torch_init(UPSTREAM, "x"), "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.10.0+rocm7.10.0", "2.10.0+rocm7.10.0.standalone"),
        ("2.10.0a0+devrocm7.10.0.dev0.f689a8ea", "2.10.0a0+devrocm7.10.0.dev0.f689a8ea.standalone"),
        ("2.10.0", "2.10.0+standalone"),
    ],
)
def test_versions_carry_a_mark_that_pep_440_accepts_as_it_is(old: str, new: str) -> None:
    assert fat.standalone_version(Version(old), "standalone") == new
    assert str(Version(new)) == new
    assert Version(new) > Version(old)
    with pytest.raises(WheelError, match="already"):
        fat.standalone_version(Version(new), "standalone")


def test_metadata_loses_rocm_and_nothing_else() -> None:
    old = (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+rocm7\n"
        "Requires-Dist: rocm[libraries]==7.0\n"
        "Requires-Dist: ROCm-SDK_core (==7.0);\n  python_version > '3'\n"
        "Requires-Dist: rocmtools\nrequires-dist: triton==3.6\n"
        "Requires-Dist: numpy; extra == 'all'\nProvides-Extra: all\n"
        "\nVersion: in the text\n\nRequires-Dist: rocm\n"
    )
    new = fat.standalone_metadata(old.encode(), "2.10.0+rocm7.standalone", NONE).decode()
    assert new == (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+rocm7.standalone\n"
        "Requires-Dist: rocmtools\nrequires-dist: triton==3.6\n"
        "Requires-Dist: numpy; extra == 'all'\nProvides-Extra: all\n"
        "\nVersion: in the text\n\nRequires-Dist: rocm\n"
    )


def test_licences_are_joined_where_metadata_has_an_expression() -> None:
    licenses = fat.Licenses(expression="MIT", files={Path("x"): {"LICENSE": "rocm-sdk-core/LICENSE"}})
    old = b"Metadata-Version: 2.4\nVersion: 1\nLicense-Expression: %s\nLicense-File: LICENSE\n"
    for own, both in (
        (b"BSD-3-Clause", "BSD-3-Clause AND MIT"),
        (b"MIT", "MIT"),
        (b"MIT OR Apache-2.0", "(MIT OR Apache-2.0) AND MIT"),
    ):
        new = fat.standalone_metadata(old % own, "2", licenses)
        fields = f"License-Expression: {both}\nLicense-File: rocm-sdk-core/LICENSE\nLicense-File: LICENSE\n"
        assert new.decode() == f"Metadata-Version: 2.4\nVersion: 2\n{fields}"
    words = b"Metadata-Version: 2.1\nVersion: 1\nLicense: BSD\n"
    assert b"License-" not in fat.standalone_metadata(words, "2", licenses)


def test_the_version_module_changes_where_it_states_the_whole_version() -> None:
    old = b"__version__ = '2.10.0+rocm7'\nrocm: str = \"7\"\nx = '2.10.0+rocm7.1'\ny = \"2.10.0+rocm7\"\n"
    new = fat.standalone_module(old, Version("2.10.0+rocm7"), "2.10.0+rocm7.standalone")
    assert new == old.replace(b"7'\nrocm", b"7.standalone'\nrocm").replace(
        b'7"\n', b'7.standalone"\n'
    ).replace(b'rocm: str = "7.standalone"', b'rocm: str = "7"')
