from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import BuildError, MissingInputError, RocmError, UsageError
from core.packages.options import SourceOptions
from core.packages.package_source import PackageSource
from core.packages.sources import PackageIndex, linked_source
from core.run.records import FileRecord
from rocm_packaging import origin
from rocm_packaging.origin import RocmSource
from tests.kit.machines import target_in
from tests.kit.runs import publish_rocm, write_record
from tests.kit.servers import served
from tests.kit.wheels import wheel_filename, write_sdist, write_wheel

FAMILY = "gfx94X-dcgpu"
OTHER_FAMILY = "gfx110X-all"
VERSION = "7.1.0"
UNSPLIT_LIBRARIES = "rocm-sdk-libraries-gfx94x-dcgpu"
COMMON_PACKAGES = ("rocm", "rocm-sdk-core", "rocm-sdk-devel")
SPLIT_PACKAGES = (
    *COMMON_PACKAGES,
    "rocm-sdk-libraries",
    "rocm-sdk-device-gfx942",
    "rocm-sdk-device-gfx1100",
)


def write_packages(folder: Path, names: Iterable[str], *, version: str = VERSION) -> PackageSource:
    """Write packages of ROCm into a folder; return the folder as a source."""
    for name in names:
        if name == "rocm":
            write_sdist(folder, name=name, version=version)
        else:
            write_wheel(folder, name=name, version=version)
    return linked_source(str(folder))


def file_record(distribution: str, version: str = VERSION) -> FileRecord:
    """Return the record of a wheel."""
    name = wheel_filename(name=distribution, version=version)
    return FileRecord(
        name=name,
        key=name,
        size=1,
        sha256="0" * 64,
        distribution=distribution,
        version=version,
    )


def record_packages(common: Common, files: Sequence[FileRecord], *, has_failed: bool = False) -> None:
    """Write the record of a run that packaged ROCm."""
    write_record(
        common.open_store(),
        common.outputs,
        step="build_rocm",
        family=FAMILY,
        files=files,
        error=BuildError.__name__ if has_failed else None,
    )


def choose_for_tests(
    source: PackageSource,
    folder: Path,
    *extras: str,
    families: Sequence[str] = (FAMILY,),
    targets: Sequence[str] = ("gfx942",),
) -> RocmSource:
    """Return what tests of families and targets take from a source."""
    python = target_in(folder / "env")
    return origin.choose_for_tests(
        source, VERSION, families, targets, extras, python=python, platform="linux"
    )


def choose_for_builds(source: PackageSource, *extras: str, family: str = FAMILY) -> RocmSource:
    """Return what builds for a family take from a source."""
    return origin.choose_for_build(source, VERSION, family, extras, "linux")


def package_names(source: RocmSource) -> set[str]:
    """Return the names of the packages that were chosen."""
    return {file.distribution for file in source.files}


# A run's packages


@pytest.mark.parametrize(
    ("libraries", "chosen_libraries"),
    [
        pytest.param(
            SPLIT_PACKAGES[3:],
            {"rocm-sdk-libraries", "rocm-sdk-device-gfx942"},
            id="split",
        ),
        pytest.param(
            (UNSPLIT_LIBRARIES, "rocm-sdk-libraries-gfx110x-all"),
            {UNSPLIT_LIBRARIES},
            id="unsplit",
        ),
    ],
)
def test_tests_all_packages_of_a_run_that_serve_the_family(
    tmp_path: Path, libraries: tuple[str, ...], chosen_libraries: set[str]
) -> None:
    common = Common(root=tmp_path)
    files = [file_record(name) for name in (*COMMON_PACKAGES, "rocm-profiler", *libraries)]
    record_packages(common, [*files, file_record("torch", "2"), file_record("rocm", "7.0.2")])

    rocm = choose_for_tests(origin.own_run(common, FAMILY), tmp_path, "libraries", "devel")

    assert package_names(rocm) == {
        *COMMON_PACKAGES,
        "rocm-profiler",
        *chosen_libraries,
    }


def test_finds_no_rocm_in_a_run_that_recorded_none(tmp_path: Path) -> None:
    assert not origin.has_rocm(origin.own_run(Common(root=tmp_path), FAMILY))


@pytest.mark.parametrize("has_failed", [False, True])
def test_finds_rocm_in_a_run_that_packaged_it(tmp_path: Path, *, has_failed: bool) -> None:
    common = Common(root=tmp_path)
    record_packages(common, [file_record("rocm")], has_failed=has_failed)

    assert origin.has_rocm(origin.own_run(common, FAMILY)) is not has_failed


# Versions


def test_finds_the_newest_version(tmp_path: Path) -> None:
    for version in ("7.9.0", "7.10.0", "7.10.0a20260101"):
        write_packages(tmp_path, ["rocm"], version=version)

    assert origin.newest(linked_source(str(tmp_path))) == "7.10.0"


def test_names_the_index_that_has_no_rocm(tmp_path: Path) -> None:
    with served(tmp_path) as address, pytest.raises(MissingInputError) as raised:
        origin.newest(PackageIndex(url=address))

    assert address in raised.value.message


# What builds take


def test_builds_take_no_device_code(tmp_path: Path) -> None:
    source = write_packages(tmp_path, [*SPLIT_PACKAGES, "rocm-profiler"])

    rocm = choose_for_builds(source, "profiler", family=f"{FAMILY};{OTHER_FAMILY}")

    assert rocm.layout == "split"
    assert package_names(rocm) == {
        *COMMON_PACKAGES,
        "rocm-sdk-libraries",
        "rocm-profiler",
    }


def test_builds_take_unsplit_packages_of_their_family(tmp_path: Path) -> None:
    source = write_packages(tmp_path, [*COMMON_PACKAGES, UNSPLIT_LIBRARIES])

    assert UNSPLIT_LIBRARIES in package_names(choose_for_builds(source))


def test_builds_for_several_families_need_split_packages(tmp_path: Path) -> None:
    source = write_packages(tmp_path, [*COMMON_PACKAGES, UNSPLIT_LIBRARIES])

    with pytest.raises(UsageError, match="family"):
        choose_for_builds(source, family=f"{FAMILY};{OTHER_FAMILY}")


def test_builds_name_a_package_that_is_missing(tmp_path: Path) -> None:
    source = write_packages(tmp_path, SPLIT_PACKAGES)

    with pytest.raises(MissingInputError, match="rocm-sdk-device-gfx950"):
        choose_for_builds(source, "device-gfx950")


def test_builds_refuse_what_is_no_version(tmp_path: Path) -> None:
    source = write_packages(tmp_path, SPLIT_PACKAGES)

    with pytest.raises(UsageError, match="latest"):
        origin.choose_for_build(source, "latest", FAMILY, (), "linux")


def test_knows_packages_by_their_digests(tmp_path: Path) -> None:
    source = write_packages(tmp_path, SPLIT_PACKAGES)
    digests = choose_for_builds(source).digests
    write_sdist(tmp_path, name="rocm", version=VERSION, files={"setup.py": "# changed"})

    changed_digests = choose_for_builds(linked_source(str(tmp_path))).digests

    changed_files = [name for name, digest in changed_digests.items() if digest != digests[name]]
    assert changed_files == [f"rocm-{VERSION}.tar.gz"]
    assert {len(digest) for digest in digests.values()} == {64}


def test_knows_no_digests_where_a_page_gives_none(tmp_path: Path) -> None:
    for name in SPLIT_PACKAGES:
        # The server lists what is in a folder.
        write_packages(tmp_path / name, [name])

    with served(tmp_path) as address:
        rocm = choose_for_builds(PackageIndex(url=address))

    assert package_names(rocm) == {*COMMON_PACKAGES, "rocm-sdk-libraries"}
    assert rocm.digests == {}
    assert rocm.options == ["--extra-index-url", address]


# What tests take


def test_tests_take_rocm_with_its_extras_from_a_named_source(
    tmp_path: Path,
) -> None:
    source = write_packages(tmp_path / "dist", SPLIT_PACKAGES)

    rocm = choose_for_tests(source, tmp_path, "libraries", "devel")

    assert package_names(rocm) == {
        *COMMON_PACKAGES,
        "rocm-sdk-libraries",
        "rocm-sdk-device-gfx942",
    }


def test_tests_take_the_core_alone_without_extras(tmp_path: Path) -> None:
    source = write_packages(tmp_path / "dist", SPLIT_PACKAGES)

    assert package_names(choose_for_tests(source, tmp_path)) == {
        "rocm",
        "rocm-sdk-core",
    }


def test_tests_name_targets_without_device_code(tmp_path: Path) -> None:
    source = write_packages(tmp_path / "dist", SPLIT_PACKAGES)

    with pytest.raises(MissingInputError) as raised:
        choose_for_tests(source, tmp_path, "libraries", targets=("gfx942", "gfx1201"))

    assert "gfx1201" in raised.value.message


def test_tests_take_the_unsplit_libraries_of_every_family(tmp_path: Path) -> None:
    libraries = [UNSPLIT_LIBRARIES, "rocm-sdk-libraries-gfx110x-all"]
    source = write_packages(tmp_path / "dist", [*COMMON_PACKAGES, *libraries])

    rocm = choose_for_tests(source, tmp_path, "libraries", families=[FAMILY, OTHER_FAMILY])

    assert package_names(rocm) == {"rocm", "rocm-sdk-core", *libraries}


# Layouts


@pytest.mark.parametrize(("version", "layout"), [("7.2.0", "split"), (VERSION, "unsplit")])
def test_finds_the_layout_of_a_version(tmp_path: Path, version: str, layout: str) -> None:
    write_packages(tmp_path, ["rocm-sdk-libraries"], version="7.2.0")
    source = write_packages(tmp_path, [UNSPLIT_LIBRARIES])

    assert origin.with_layout(source, version, FAMILY).layout == layout


def test_refuses_a_version_without_libraries(tmp_path: Path) -> None:
    source = write_packages(tmp_path, [UNSPLIT_LIBRARIES])

    with pytest.raises(RocmError) as raised:
        origin.with_layout(source, "7.0.0", FAMILY)

    assert "7.0.0" in raised.value.message
    assert FAMILY in raised.value.message
    assert "--rocm-version" in raised.value.hint


def test_refuses_a_version_with_both_layouts(tmp_path: Path) -> None:
    source = write_packages(tmp_path, [UNSPLIT_LIBRARIES, "rocm-sdk-libraries"])

    with pytest.raises(RocmError, match="both layouts"):
        origin.with_layout(source, VERSION, FAMILY)


# Sources as people name them


def named_source(folder: Path, options: SourceOptions) -> PackageSource:
    """Return the source that options name."""
    source = origin.named_source(options, Common(root=folder), FAMILY)
    assert source is not None
    return source


def test_names_no_source_by_a_version(tmp_path: Path) -> None:
    options = SourceOptions(version=VERSION)

    assert origin.named_source(options, Common(root=tmp_path), FAMILY) is None


def test_names_a_folder(tmp_path: Path) -> None:
    folder = str(tmp_path / "wheels")

    assert named_source(tmp_path, SourceOptions(find_links=(folder,))).find_links == (folder,)


def test_names_a_folder_of_several_indexes(tmp_path: Path) -> None:
    options = SourceOptions(index_urls=("https://a/v2", "https://b/"), index_subdir=OTHER_FAMILY)

    source = named_source(tmp_path, options)

    assert source.index_urls == (
        f"https://a/v2/{OTHER_FAMILY}/",
        f"https://b/{OTHER_FAMILY}/",
    )


@pytest.mark.parametrize(
    ("index_subdir", "family"),
    [("", FAMILY), (OTHER_FAMILY, OTHER_FAMILY)],
    ids=["own", "other"],
)
def test_names_a_release_index_of_a_family(tmp_path: Path, index_subdir: str, family: str) -> None:
    source = named_source(tmp_path, SourceOptions(index_name="dev-v2", index_subdir=index_subdir))

    (url,) = source.index_urls
    assert url.endswith(f"/{family}/")


def test_names_a_release_index_before_other_ones(tmp_path: Path) -> None:
    source = named_source(tmp_path, SourceOptions(index_name="dev", index_urls=("https://a",)))

    assert source.index_urls == (
        origin.release_index_url("dev", FAMILY),
        "https://a",
    )


def test_refuses_a_folder_of_an_index_for_all_families(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=OTHER_FAMILY):
        named_source(tmp_path, SourceOptions(index_subdir=OTHER_FAMILY))


@pytest.fixture
def other_store(tmp_path: Path) -> str:
    """Return a store with run 17, which packaged ROCm."""
    common = Common(root=tmp_path, run_id="17", store=str(tmp_path / "theirs"))
    publish_rocm(
        common.open_store(),
        common.outputs,
        tmp_path / "packages",
        family=FAMILY,
        version=VERSION,
    )
    return common.store


def test_names_another_run(tmp_path: Path, other_store: str) -> None:
    source = named_source(tmp_path, SourceOptions(run_id="17", store=other_store, prefix="--rocm-"))

    assert source.versions("rocm") == (VERSION,)
    assert "run 17" in source.description


def test_refuses_a_run_that_a_store_does_not_have(tmp_path: Path, other_store: str) -> None:
    with pytest.raises(MissingInputError, match="run 18"):
        named_source(tmp_path, SourceOptions(run_id="18", store=other_store))
