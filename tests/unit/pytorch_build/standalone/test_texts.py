import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from core.errors import WheelError
from pytorch_build.components.torch import rocm_init_text
from pytorch_build.sample import TEMPLATES
from pytorch_build.standalone import texts
from pytorch_build.standalone.texts import Licenses, Loader

UPSTREAM_INIT = Path(__file__).with_name("recorded").joinpath("load-dlls.txt").read_text()
SAMPLE_INIT = (TEMPLATES / "torch" / "torch" / "__init__.py").read_text(encoding="utf-8")
NO_LICENSES = Licenses(expression="", files={})

# Loaders


def test_reads_the_loader_that_our_builds_write() -> None:
    text = rocm_init_text(("amd_comgr", "amdhip64"), rocm_version="7.1.0rc2")

    loader = texts.read_rocm_init(text, "x")

    assert loader == Loader(names=("amd_comgr", "amdhip64"), version="7.1.0rc2")


def test_reads_a_loader_without_a_version() -> None:
    text = "import rocm_sdk as sdk\ndef initialize():\n  sdk.initialize_process(preload_shortnames=('a',))\n"

    assert texts.read_rocm_init(text, "x") == Loader(names=("a",), version="")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def initialize(): pass\n", id="no call"),
        pytest.param("def initialize(:\n", id="no Python"),
        pytest.param("rocm_sdk.initialize_process(preload_shortnames=names())\n", id="computed names"),
        pytest.param("rocm_sdk.initialize_process(preload_shortnames='abc')\n", id="text for names"),
        pytest.param("rocm_sdk.initialize_process(preload_shortnames=[1])\n", id="number for a name"),
        pytest.param("a.initialize_process()\nb.initialize_process()\n", id="two calls"),
    ],
)
def test_refuses_a_loader_that_it_does_not_understand(text: str) -> None:
    with pytest.raises(WheelError) as raised:
        texts.read_rocm_init(text, "w.whl: torch/_rocm_init.py")

    assert "w.whl: torch/_rocm_init.py" in raised.value.message


def run_loader(text: str, package: Path) -> None:
    """Run a loader as the file of a package."""
    names: dict[str, Any] = {"__file__": str(package / "_rocm_init.py")}
    exec(compile(text, "_rocm_init.py", "exec"), names)  # noqa: S102 - our own text
    names["initialize"]()


@pytest.fixture
def loader_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the list of what is loaded and added to the search for DLLs from now on, in order."""
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(
        os, "add_dll_directory", lambda path: calls.append(("add folder", path)), raising=False
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda path, **_mode: calls.append(("load", path)))
    return calls


def test_loads_the_wheels_libraries_in_order(tmp_path: Path, loader_calls: list[tuple[str, str]]) -> None:
    text = texts.render_rocm_init(["core/lib/libb.so.1", "core/lib/liba.so.2"], windows=False)

    run_loader(text, tmp_path)

    folder = tmp_path / "lib/rocm/core/lib"
    assert loader_calls == [("load", str(folder / "libb.so.1")), ("load", str(folder / "liba.so.2"))]


def test_adds_the_wheels_folder_to_the_search_for_dlls_first(
    tmp_path: Path, loader_calls: list[tuple[str, str]]
) -> None:
    text = texts.render_rocm_init(["bin/amdhip64_7.dll"], windows=True)

    run_loader(text, tmp_path)

    folder = tmp_path / "lib/rocm/bin"
    assert loader_calls == [("add folder", str(folder)), ("load", str(folder / "amdhip64_7.dll"))]


def test_names_a_library_of_the_wheel_that_cannot_be_loaded(tmp_path: Path) -> None:
    text = texts.render_rocm_init(["core/lib/libb.so.1"], windows=False)

    with pytest.raises(ImportError, match=r"core/lib/libb\.so\.1"):
        run_loader(text, tmp_path)


# torch/__init__.py


@pytest.mark.parametrize("init", [UPSTREAM_INIT, SAMPLE_INIT], ids=["upstream", "sample"])
def test_lets_torch_look_into_the_wheels_rocm_first(init: str) -> None:
    patched_init = texts.patched_torch_init(init, "torch/__init__.py")

    lines = patched_init.splitlines()
    loop = lines.index("        for dll_path in dll_paths:")
    assert lines[loop - 1] == '        dll_paths.insert(0, os.path.join(th_dll_path, "rocm", "bin"))'
    assert lines[: loop - 1] + lines[loop:] == init.splitlines()
    compile(patched_init, "torch/__init__.py", "exec")


def test_patches_every_loop_over_dll_folders() -> None:
    patched_init = texts.patched_torch_init(UPSTREAM_INIT * 2, "torch/__init__.py")

    assert patched_init.count("dll_paths.insert(0,") == 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import os\n", id="no loop"),
        pytest.param(texts.patched_torch_init(UPSTREAM_INIT, "x"), id="patched"),
    ],
)
def test_refuses_to_patch_another_text(text: str) -> None:
    with pytest.raises(WheelError, match=r"w\.whl"):
        texts.patched_torch_init(text, "w.whl: torch/__init__.py")


# Versions


@pytest.mark.parametrize(
    ("version", "marked_version"),
    [
        ("2.10.0+rocm7.10.0", "2.10.0+rocm7.10.0.standalone"),
        ("2.10.0a0+devrocm7.10.0.dev0.f689a8ea", "2.10.0a0+devrocm7.10.0.dev0.f689a8ea.standalone"),
        ("2.10.0", "2.10.0+standalone"),
    ],
)
def test_marks_a_version_in_a_way_that_pep_440_allows(version: str, marked_version: str) -> None:
    assert texts.standalone_version(Version(version), "standalone") == marked_version
    assert str(Version(marked_version)) == marked_version
    assert Version(marked_version) > Version(version)


@pytest.mark.parametrize("version", ["2.10.0+standalone", "2.10.0+rocm7.standalone"])
def test_refuses_to_mark_a_version_twice(version: str) -> None:
    with pytest.raises(WheelError) as raised:
        texts.standalone_version(Version(version), "standalone")

    assert version in raised.value.message


def test_changes_the_complete_version_in_the_version_module() -> None:
    module = b"__version__ = '2.10.0+rocm7'\nrocm: str = \"7\"\nx = '2.10.0+rocm7.1'\ny = \"2.10.0+rocm7\"\n"

    changed_module = texts.standalone_version_module(
        module, Version("2.10.0+rocm7"), "2.10.0+rocm7.standalone"
    )

    assert changed_module == (
        b"__version__ = '2.10.0+rocm7.standalone'\n"
        b'rocm: str = "7"\n'
        b"x = '2.10.0+rocm7.1'\n"
        b'y = "2.10.0+rocm7.standalone"\n'
    )


# METADATA


def test_removes_rocm_from_metadata_and_nothing_else() -> None:
    metadata = (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+rocm7\n"
        "Requires-Dist: rocm[libraries]==7.0\n"
        "Requires-Dist: ROCm-SDK_core (==7.0);\n  python_version > '3'\n"
        "Requires-Dist: rocmtools\nrequires-dist: triton==3.6\n"
        "Requires-Dist: numpy; extra == 'all'\nProvides-Extra: all\n"
        "\nVersion: in the text\n\nRequires-Dist: rocm\n"
    )

    changed_metadata = texts.standalone_metadata(metadata.encode(), "2.10.0+rocm7.standalone", NO_LICENSES)

    assert changed_metadata.decode() == (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0+rocm7.standalone\n"
        "Requires-Dist: rocmtools\nrequires-dist: triton==3.6\n"
        "Requires-Dist: numpy; extra == 'all'\nProvides-Extra: all\n"
        "\nVersion: in the text\n\nRequires-Dist: rocm\n"
    )


MIT = Licenses(expression="MIT", files={Path("x"): {"LICENSE": "rocm-sdk-core/LICENSE"}})


@pytest.mark.parametrize(
    ("expression", "joined_expression"),
    [
        ("BSD-3-Clause", "BSD-3-Clause AND MIT"),
        ("MIT", "MIT"),
        ("MIT OR Apache-2.0", "(MIT OR Apache-2.0) AND MIT"),
    ],
)
def test_joins_licence_expressions_and_files(expression: str, joined_expression: str) -> None:
    metadata = f"Metadata-Version: 2.4\nVersion: 1\nLicense-Expression: {expression}\nLicense-File: LICENSE\n"

    changed_metadata = texts.standalone_metadata(metadata.encode(), "2", MIT)

    assert changed_metadata.decode() == (
        f"Metadata-Version: 2.4\nVersion: 2\nLicense-Expression: {joined_expression}\n"
        "License-File: rocm-sdk-core/LICENSE\nLicense-File: LICENSE\n"
    )


def test_adds_no_expression_to_a_licence_in_words() -> None:
    metadata = b"Metadata-Version: 2.1\nVersion: 1\nLicense: BSD\n"

    assert b"License-" not in texts.standalone_metadata(metadata, "2", MIT)
