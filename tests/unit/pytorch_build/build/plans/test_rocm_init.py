from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RocmError
from pytorch_build.build.plans.torch import REQUIRED, Preloads, preload_names, query_code, rocm_init_text
from pytorch_build.platforms import Platform, platform_named

BOTH = {
    "amd_comgr", "amdhip64", "hiprtc", "hipblas", "hipfft", "hiprand", "hipsparse", "hipsparselt",
    "hipsolver", "hipblaslt", "miopen", "hipdnn", "rocm-openblas",
}  # fmt: skip
LINUX_ONLY = {
    "amd_smi", "rocm_sysdeps_liblzma", "rocm_smi64", "rocprofiler-sdk", "rocprofiler-sdk-roctx",
    "roctracer64", "roctx64", "rccl", "hipfile",
}  # fmt: skip
platforms = st.sampled_from(["linux", "windows"]).map(platform_named)


def run_initialize(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the file as torch does, with an SDK that notes how it was called."""
    calls: list[dict[str, Any]] = []
    sdk = types.ModuleType("rocm_sdk")
    vars(sdk)["initialize_process"] = lambda **arguments: calls.append(arguments)
    monkeypatch.setitem(sys.modules, "rocm_sdk", sdk)
    scope: dict[str, Any] = {}
    exec(compile(text, "_rocm_init.py", "exec"), scope)  # noqa: S102 - the file that is tested
    assert calls == [], "importing the file must load nothing"
    scope["initialize"]()
    return calls[0]


def test_lists_of_both_platforms() -> None:
    assert set(platform_named("linux").PRELOADS) == BOTH | LINUX_ONLY
    assert set(platform_named("windows").PRELOADS) == BOTH


def test_a_complete_sdk_preloads_everything_in_order() -> None:
    linux = platform_named("linux")
    assert preload_names(linux, BOTH | LINUX_ONLY | {"origami"}) == Preloads(names=linux.PRELOADS, absent=())


def test_what_the_sdk_lacks_is_left_out_and_told() -> None:
    linux = platform_named("linux")
    found = preload_names(linux, (BOTH | LINUX_ONLY) - {"hipfile", "roctracer64"})
    assert found.absent == ("roctracer64", "hipfile")
    assert "hipfile" not in found.names
    assert found.names[0] == "amd_comgr"


@pytest.mark.parametrize("name", REQUIRED)
def test_an_sdk_without_a_core_library_is_refused(name: str) -> None:
    with pytest.raises(RocmError, match=name):
        preload_names(platform_named("windows"), BOTH - {name})


@given(platforms, st.sets(st.sampled_from(sorted(BOTH | LINUX_ONLY))))
def test_nothing_that_the_sdk_lacks_is_loaded(platform: Platform, available: set[str]) -> None:
    found = preload_names(platform, available | set(REQUIRED))
    assert set(found.names) == (available | set(REQUIRED)) & set(platform.PRELOADS)
    assert set(found.names) | set(found.absent) == set(platform.PRELOADS)
    assert not set(found.names) & set(found.absent)


@pytest.mark.parametrize("version", ["7.10.0a20251120", "7.99.0.dev0+sample", "7'\n\"\\"])
def test_the_file_passes_names_and_version_on(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preloads = Preloads(names=("amd_comgr", "amdhip64"), absent=())
    assert run_initialize(rocm_init_text(preloads, rocm_version=version), monkeypatch) == {
        "preload_shortnames": ["amd_comgr", "amdhip64"],
        "check_version": version,
    }


def test_a_file_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(RocmError):
        rocm_init_text(Preloads(names=(), absent=()), rocm_version="7.10.0")
    with pytest.raises(RocmError):
        rocm_init_text(Preloads(names=("amdhip64",), absent=()), rocm_version="")


def test_the_query_prints_what_the_sdk_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_libraries(name: str) -> list[str]:
        if name == "hipfile":
            raise ModuleNotFoundError("Unknown rocm library 'hipfile'")
        if name == "rccl":
            raise FileNotFoundError
        return [] if name == "roctx64" else [f"/sdk/lib{name}.so"]

    sdk = types.ModuleType("rocm_sdk")
    vars(sdk)["find_libraries"] = find_libraries
    monkeypatch.setitem(sys.modules, "rocm_sdk", sdk)
    exec(query_code(platform_named("linux")), {})  # noqa: S102 - the code that is tested
    printed = capsys.readouterr().out.split()
    assert set(printed) == (BOTH | LINUX_ONLY) - {"hipfile", "rccl", "roctx64"}
