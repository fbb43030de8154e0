from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, RocmError, UsageError
from core.packages import offers_named
from core.packages.sources import PackageSource, SourceOptions
from core.run import records
from rocm_packaging import origin
from tests.kit.machines import target_in

FAMILY = "gfx94X-dcgpu"
TARGETS = ("gfx942",)
UNSPLIT = "rocm-sdk-libraries-gfx94x-dcgpu"
ALWAYS = ("rocm", "rocm-sdk-core", "rocm-sdk-devel")
SPLIT = (*ALWAYS, "rocm-sdk-libraries", "rocm-sdk-device-gfx942", "rocm-sdk-device-gfx1100")


@pytest.fixture
def folder(tmp_path: Path, make_wheel: Callable[..., Path]) -> Callable[..., PackageSource]:
    def made(*names: str, version: str = "7.1.0") -> PackageSource:
        for name in names:
            if name == "rocm":
                (tmp_path / "dist").mkdir(exist_ok=True)
                (tmp_path / "dist" / f"rocm-{version}.tar.gz").write_bytes(b"sdist")
            else:
                make_wheel(tmp_path / "dist", name, version)
        return PackageSource(find_links=(str(tmp_path / "dist"),))

    return made


def file(distribution: str, version: str) -> records.FileRecord:
    name = f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"
    return records.FileRecord(
        name=name, key=name, size=1, sha256="0" * 64, distribution=distribution, version=version
    )


def run_of(common: Common, *found: records.FileRecord, status: str = "ok") -> PackageSource:
    run, cell = common.outputs.run_id, records.Cell(gpu_family=FAMILY)
    facts = {"stage": "build_rocm", "status": status, "run_id": run, "platform": "linux", "cell": cell}
    record = records.Record.model_validate({**facts, "started": "now", "seconds": 1, "files": found})
    records.write(common.open_store(), common.outputs, FAMILY, record)
    return origin.own_run(common, FAMILY)


def chosen_of(source: PackageSource, tmp_path: Path, *extras: str, **more: Any) -> Any:
    return origin.for_tests(
        source,
        "7.1.0",
        more.get("families", [FAMILY]),
        more.get("targets", TARGETS),
        extras,
        python=target_in(tmp_path / "env"),
        platform="linux",
    )


def names(files: Sequence[Any]) -> set[str]:
    return {one.distribution for one in files}


@pytest.mark.parametrize(
    ("libraries", "taken"),
    [
        (SPLIT[3:], {"rocm-sdk-libraries", "rocm-sdk-device-gfx942"}),
        ((UNSPLIT, "rocm-sdk-libraries-gfx110x-all"), {UNSPLIT}),
    ],
    ids=["split", "unsplit"],
)
def test_records_name_what_is_tested(tmp_path: Path, libraries: tuple[str, ...], taken: set[str]) -> None:
    found = [file(name, "7.1.0") for name in (*ALWAYS, "rocm-profiler", *libraries)]
    source = run_of(Common(root=tmp_path), *found, file("torch", "2"), file("rocm", "7.0.2"))
    expected = {*ALWAYS, "rocm-profiler", *taken}
    assert names(chosen_of(source, tmp_path, "libraries", "devel").files) == expected


def test_a_run_without_rocm_has_none(tmp_path: Path) -> None:
    common = Common(root=tmp_path)
    assert not origin.has_rocm(origin.own_run(common, FAMILY))
    assert not origin.has_rocm(run_of(common, file("rocm", "7.1.0"), status="failed"))
    assert origin.has_rocm(run_of(common, file("rocm", "7.1.0")))


def test_versions_are_compared_as_versions(folder: Callable[..., PackageSource]) -> None:
    for version in ("7.9.0", "7.10.0", "7.10.0a20260101"):
        folder("rocm", version=version)
    assert origin.newest(folder()) == "7.10.0"
    empty = PackageSource(index_urls=("https://a",))
    empty._indexed["rocm"] = ()
    with pytest.raises(MissingInputError, match="no version of rocm at https://a"):
        origin.newest(empty)


def test_builds_take_no_device_code(folder: Callable[..., PackageSource]) -> None:
    source = folder(*SPLIT, "rocm-profiler")
    found = origin.for_build(source, "7.1.0", "gfx94X-dcgpu;gfx110X-all", ("profiler",), "linux")
    assert found.layout == "split"
    assert names(found.files) == {*ALWAYS, "rocm-sdk-libraries", "rocm-profiler"}
    assert all(len(one) == 64 for one in found.digests.values())
    with pytest.raises(MissingInputError, match=r"no rocm-sdk-device-gfx950 7\.1\.0 at"):
        origin.for_build(source, "7.1.0", FAMILY, ("device-gfx950",), "linux")
    with pytest.raises(UsageError, match="Invalid ROCm version"):
        origin.for_build(source, "latest", FAMILY, (), "linux")


def test_unsplit_packages_serve_one_family(folder: Callable[..., PackageSource]) -> None:
    source = folder(*ALWAYS, UNSPLIT)
    assert UNSPLIT in names(origin.for_build(source, "7.1.0", FAMILY, (), "linux").files)
    with pytest.raises(UsageError, match="serve one GPU family"):
        origin.for_build(source, "7.1.0", "gfx94X-dcgpu;gfx110X-all", (), "linux")


def test_other_bytes_are_another_source(folder: Callable[..., PackageSource], tmp_path: Path) -> None:
    first = origin.for_build(folder(*SPLIT), "7.1.0", FAMILY, (), "linux").digests
    (tmp_path / "dist" / "rocm-7.1.0.tar.gz").write_bytes(b"two")
    assert origin.for_build(folder(), "7.1.0", FAMILY, (), "linux").digests != first


def test_a_named_source_gives_rocm_with_extras(folder: Callable[..., PackageSource], tmp_path: Path) -> None:
    source = folder(*SPLIT)
    found = chosen_of(source, tmp_path, "libraries", "devel")
    assert names(found.files) == {*ALWAYS, "rocm-sdk-libraries", "rocm-sdk-device-gfx942"}
    assert names(chosen_of(source, tmp_path).files) == {"rocm", "rocm-sdk-core"}
    with pytest.raises(MissingInputError, match=r"no device code .* gfx1201 \(it has gfx942\)"):
        chosen_of(source, tmp_path, "libraries", targets=("gfx942", "gfx1201"))


def test_unsplit_libraries_of_others_are_named(folder: Callable[..., PackageSource], tmp_path: Path) -> None:
    source = folder(*ALWAYS, UNSPLIT, "rocm-sdk-libraries-gfx110x-all")
    found = chosen_of(source, tmp_path, "libraries", families=[FAMILY, "gfx110X-all"])
    assert names(found.files) == {"rocm", "rocm-sdk-core", UNSPLIT, "rocm-sdk-libraries-gfx110x-all"}


def test_a_source_is_asked_for_the_layout_of_its_version(folder: Callable[..., PackageSource]) -> None:
    folder("rocm-sdk-libraries", version="7.2.0")
    source = folder(UNSPLIT)
    assert origin.with_layout(source, "7.2.0", FAMILY).layout == "split"
    assert origin.with_layout(source, "7.1.0", FAMILY).layout == "unsplit"
    with pytest.raises(RocmError, match=r"has no ROCm 7\.0\.0 libraries for gfx94X-dcgpu") as caught:
        origin.with_layout(source, "7.0.0", FAMILY)
    assert "--rocm-version" in caught.value.hint
    with pytest.raises(RocmError, match=r"of version 7\.2\.0 holds ROCm packages of both layouts"):
        origin.with_layout(folder(UNSPLIT, version="7.2.0"), "7.2.0", FAMILY)


def test_an_address_whose_page_gives_no_digests_may_change() -> None:
    source = PackageSource(index_urls=("https://a",))
    for name in SPLIT:
        one = offers_named(f"{name.replace('-', '_')}-7.1.0-py3-none-any.whl", url=f"https://a/{name}")
        source._indexed[name] = tuple(one)
    source._indexed[UNSPLIT] = ()
    found = origin.for_build(source, "7.1.0", FAMILY, (), "linux")
    assert (found.digests, found.options) == ({}, ["--extra-index-url", "https://a"])


def named(tmp_path: Path, **options: Any) -> Any:
    return origin.named_source(SourceOptions(**options), Common(root=tmp_path), FAMILY)


def test_sources_are_named_as_people_name_them(tmp_path: Path) -> None:
    assert named(tmp_path, version="7.1.0") is None
    assert named(tmp_path, find_links=("/wheels",)).find_links == ("/wheels",)
    below = named(tmp_path, index_urls=("https://a/v2", "https://b/"), index_subdir="gfx110X-all")
    assert below.index_urls == ("https://a/v2/gfx110X-all/", "https://b/gfx110X-all/")
    old = {"index_name": "dev-v2"}
    assert named(tmp_path, **old).index_urls == (f"https://rocm.devreleases.amd.com/v2/{FAMILY}/",)
    assert named(tmp_path, **old, index_subdir="gfx110X-all").index_urls[0].endswith("/gfx110X-all/")
    both = named(tmp_path, index_name="dev", index_urls=("https://a",))
    assert both.index_urls == (origin.release_index_url("dev", FAMILY), "https://a")
    with pytest.raises(UsageError, match="serves all families and has no folder gfx110X-all"):
        named(tmp_path, index_subdir="gfx110X-all")


def test_another_run_is_a_source_like_any_other(tmp_path: Path) -> None:
    common = Common(root=tmp_path, run_id="17", store=str(tmp_path / "theirs"))
    run_of(common, file("rocm", "7.1.0"))
    common.open_store().put_bytes(f"{common.outputs.python_prefix(FAMILY)}/rocm-7.1.0.tar.gz", b"x")
    found = named(tmp_path, run_id="17", store=str(tmp_path / "theirs"), prefix="--rocm-")
    assert found.versions("rocm") == ("7.1.0",)
    assert "run 17" in found.words
    with pytest.raises(MissingInputError, match="run 18"):
        named(tmp_path, run_id="18", store=str(tmp_path / "theirs"))
