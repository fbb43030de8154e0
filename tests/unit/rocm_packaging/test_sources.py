from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core import installer, records
from core.errors import MissingInputError, RocmError, UsageError
from core.installer import Sources
from core.options import Common
from core.records import Cell, FileRecord, Record
from rocm_packaging import sources
from rocm_packaging.sources import RocmSource, in_record, install_call, named_call, with_layout

if TYPE_CHECKING:
    from pathlib import Path

FAMILY = "gfx94X-dcgpu"
TARGETS = ("gfx942",)


def file(distribution: str, version: str) -> FileRecord:
    name = f"{distribution.replace('-', '_')}-{version}"
    return FileRecord(name=name, size=1, sha256="0" * 64, distribution=distribution, version=version)


def recorded(common: Common, stage: str, *found: FileRecord, status: str = "ok") -> None:
    record = Record.model_validate(
        {
            "stage": stage,
            "status": status,
            "run_id": "local",
            "platform": "linux",
            "cell": Cell(gpu_family=FAMILY),
            "started": "now",
            "seconds": 1,
            "files": found,
        }
    )
    records.write(common.open_store(), common.outputs, FAMILY, record)


@pytest.fixture
def common(tmp_path: Path) -> Common:
    return Common(root=tmp_path)


ALWAYS = ("rocm", "rocm-profiler", "rocm-sdk-core", "rocm-sdk-devel")


@pytest.mark.parametrize(
    ("libraries", "taken"),
    [
        (
            ("rocm-sdk-libraries", "rocm-sdk-device-gfx942", "rocm-sdk-device-gfx1100"),
            ("rocm-sdk-libraries", "rocm-sdk-device-gfx942"),
        ),
        (
            ("rocm-sdk-libraries-gfx94x-dcgpu", "rocm-sdk-libraries-gfx110x-all"),
            ("rocm-sdk-libraries-gfx94x-dcgpu",),
        ),
    ],
    ids=["split", "unsplit"],
)
def test_a_runs_records_name_what_is_installed(
    common: Common, libraries: tuple[str, ...], taken: tuple[str, ...]
) -> None:
    recorded(common, "build_rocm", *(file(name, "7.1.0") for name in (*ALWAYS, *libraries)))
    recorded(common, "build_torch", file("torch", "2.10.0"))
    recorded(common, "build_rocm-old", file("rocm", "7.0.2"), file("rocm-sdk-core", "7.0.2"))
    found = [one.distribution for one in in_record(common, FAMILY, [FAMILY], TARGETS)]
    assert found == sorted((*ALWAYS, *taken))
    old = in_record(common, FAMILY, [FAMILY], TARGETS, "7.0.2")
    assert [one.version for one in old] == ["7.0.2", "7.0.2"]


def test_a_run_with_both_layouts_or_without_a_target_is_refused(common: Common) -> None:
    both = ("rocm-sdk-libraries", "rocm-sdk-libraries-gfx94x-dcgpu")
    recorded(common, "build_rocm", *(file(name, "7.1.0") for name in (*ALWAYS, *both)))
    with pytest.raises(RocmError, match="both layouts: rocm-sdk-libraries, rocm-sdk-libraries-gfx94x-dcgpu"):
        in_record(common, FAMILY, [FAMILY], TARGETS)
    split = (*ALWAYS, "rocm-sdk-libraries", "rocm-sdk-device-gfx1100")
    recorded(common, "build_rocm", *(file(name, "7.1.0") for name in split))
    with pytest.raises(MissingInputError, match=r"no device code of ROCm 7\.1\.0 for gfx942 "):
        in_record(common, FAMILY, [FAMILY], TARGETS)
    assert len(in_record(common, FAMILY, [FAMILY], ("gfx1100",))) == len(split)


def test_versions_are_compared_as_versions(common: Common) -> None:
    for number, version in enumerate(("7.9.0", "7.10.0", "7.10.0a20260101")):
        recorded(common, f"build_rocm{number}", file("rocm", version))
    assert [one.version for one in in_record(common, FAMILY, [FAMILY], TARGETS)] == ["7.10.0"]


def test_a_run_without_rocm_says_what_to_do(common: Common) -> None:
    recorded(common, "build_rocm", file("rocm", "7.1.0"), status="failed")
    with pytest.raises(MissingInputError, match="no ROCm packages for gfx94X-dcgpu") as raised:
        in_record(common, FAMILY, [FAMILY], TARGETS)
    assert "--find-links" in raised.value.hint
    with pytest.raises(MissingInputError, match=r"no ROCm 9\.9\.9"):
        in_record(common, FAMILY, [FAMILY], TARGETS, "9.9.9")


def test_named_sources_give_rocm_and_its_extras_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", Sources)
    source = RocmSource(version="7.1.0", layout="unsplit", find_links=("/wheels",))
    call = named_call(source, [FAMILY, "gfx110X-all"], TARGETS, ("libraries", "devel"))
    assert call.requirements == ("rocm[libraries,devel]==7.1.0", "rocm-sdk-libraries-gfx110x-all==7.1.0")
    assert call.env == {"ROCM_SDK_TARGET_FAMILY": FAMILY}
    assert call.config_settings == (f"gpu-family={FAMILY}",)
    assert call.sources is not None
    assert call.sources.no_index
    assert named_call(source, [FAMILY], TARGETS, ()).requirements == ("rocm==7.1.0",)
    with pytest.raises(UsageError, match="no ROCm version"):
        named_call(source.of_version("latest"), [FAMILY], TARGETS, ())


def test_split_sources_give_the_device_packages_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", Sources)
    source = RocmSource(version="7.1.0", layout="split", find_links=("/wheels",))
    call = named_call(source, [FAMILY], ("gfx942", "gfx1100"), ("libraries",))
    assert call.requirements == (
        "rocm[libraries]==7.1.0",
        "rocm-sdk-device-gfx942==7.1.0",
        "rocm-sdk-device-gfx1100==7.1.0",
    )
    assert call.env == {"ROCM_SDK_TARGET_FAMILY": "gfx942"}
    assert named_call(source, [FAMILY], TARGETS, ()).requirements == ("rocm==7.1.0",)


def test_builds_take_no_device_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", Sources)
    split = RocmSource(version="7.1.0", layout="split", find_links=("/wheels",))
    call = install_call(split, "gfx94X-dcgpu;gfx110X-all", ("profiler",))
    names = ("rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-devel", "rocm-profiler")
    assert call.requirements == tuple(f"{name}==7.1.0" for name in names)
    assert "ROCM_SDK_TARGET_FAMILY" not in call.env
    unsplit = replace(split, layout="unsplit")
    assert "rocm-sdk-libraries-gfx94x-dcgpu==7.1.0" in install_call(unsplit, FAMILY).requirements
    with pytest.raises(UsageError, match="serve one GPU family"):
        install_call(unsplit, "gfx94X-dcgpu;gfx110X-all")


@pytest.mark.parametrize(
    ("held", "layout"),
    [
        ({"rocm-sdk-libraries": ("7.2.0", "7.1.0")}, "split"),
        ({"rocm-sdk-libraries-gfx94x-dcgpu": ("7.1.0",), "rocm-sdk-libraries": ("7.2.0",)}, "unsplit"),
    ],
)
def test_a_source_is_asked_for_the_layout_of_its_version(
    monkeypatch: pytest.MonkeyPatch, held: dict[str, tuple[str, ...]], layout: str
) -> None:
    monkeypatch.setattr(sources, "configured", Sources)
    monkeypatch.setattr(installer, "versions", lambda name, _: held.get(name, ()))
    source = RocmSource(version="7.1.0", index_urls=("https://a/",), origin="https://a/")
    assert with_layout(source, FAMILY).layout == layout
    with pytest.raises(RocmError, match=r"https://a/ has no ROCm 7\.0\.0 libraries for gfx94X-dcgpu"):
        with_layout(source.of_version("7.0.0"), FAMILY)


def test_a_split_source_must_have_the_device_code_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", Sources)
    held = ("rocm-sdk-libraries", "rocm-sdk-device-gfx942")
    monkeypatch.setattr(installer, "versions", lambda name, _: ("7.1.0",) if name in held else ())
    source = RocmSource(version="7.1.0", index_urls=("https://a/",), origin="https://a/")
    assert with_layout(source, FAMILY, TARGETS).layout == "split"
    with pytest.raises(
        MissingInputError, match=r"https://a/ has no device code .* gfx1201 \(it has gfx942\)"
    ):
        with_layout(source, FAMILY, ("gfx942", "gfx1201"))


def test_a_source_with_both_layouts_of_a_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "configured", Sources)
    monkeypatch.setattr(installer, "versions", lambda *_: ("7.1.0",))
    source = RocmSource(version="7.1.0", index_urls=("https://a/",), origin="https://a/")
    with pytest.raises(RocmError, match=r"https://a/ of version 7\.1\.0 holds ROCm packages of both layouts"):
        with_layout(source, FAMILY)


def test_folders_are_known_by_their_contents(tmp_path: Path) -> None:
    source = RocmSource(version="7.1.0", find_links=(str(tmp_path),))
    with pytest.raises(MissingInputError, match="no ROCm packages"):
        source.contents()
    (tmp_path / "rocm-7.1.0.tar.gz").write_bytes(b"one")
    (tmp_path / "rocm.txt").write_bytes(b"not a package")
    first = source.contents()
    assert first is not None
    assert list(first) == ["rocm-7.1.0.tar.gz"]
    (tmp_path / "rocm-7.1.0.tar.gz").write_bytes(b"two")
    assert source.contents() != first


@pytest.mark.parametrize(
    "source",
    [
        RocmSource(version="7.1.0", index_urls=("https://a/",)),
        RocmSource(version="7.1.0", find_links=("https://a/index.html",)),
    ],
)
def test_what_an_address_serves_is_not_known(source: RocmSource) -> None:
    assert source.contents() is None
