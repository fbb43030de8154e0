import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from core import process
from core.binaries import elf
from core.errors import ArtifactError, BuildError, MissingInputError, UsageError
from core.run import Platform
from rocm_packaging.packages.build import BuiltPackages, build, stub, stub_template
from rocm_packaging.packages.inputs import inputs_of
from rocm_packaging.packages.listing import (
    COLUMNS,
    PlannedFile,
    plan_json,
    planned_files,
    table_rows,
)
from rocm_packaging.packages.plan import PackagingPlan, make_plan
from tests.kit.artifacts import (
    SPLIT_TARGETS,
    VERSION,
    build_request,
    package_members,
    read_sdist_member,
    run_dist_info,
    write_artifact,
    write_split_set,
    write_unsplit_set,
)
from tests.kit.binaries import elf_file
from tests.kit.wheels import read_members

FAMILIES = ("gfx94X-dcgpu", "gfx110X-all")


@pytest.fixture
def unsplit_set(tmp_path: Path) -> Path:
    """Return a small unsplit set of two families."""
    return write_unsplit_set(tmp_path / "artifacts")


@pytest.fixture
def split_set(tmp_path: Path) -> Path:
    """Return a small split set of three targets."""
    return write_split_set(tmp_path / "artifacts")


@pytest.fixture(scope="module")
def unsplit_packages(tmp_path_factory: pytest.TempPathFactory) -> BuiltPackages:
    """Return the packages of the unsplit set."""
    artifacts = write_unsplit_set(tmp_path_factory.mktemp("unsplit") / "artifacts")
    return build(replace(build_request(artifacts), families=FAMILIES))


@pytest.fixture(scope="module")
def split_packages(tmp_path_factory: pytest.TempPathFactory) -> BuiltPackages:
    """Return the packages of the split set."""
    artifacts = write_split_set(tmp_path_factory.mktemp("split") / "artifacts")
    return build(build_request(artifacts))


def paths(packages: BuiltPackages) -> Mapping[str, Path]:
    """Return the files of packages by the distribution in their names."""
    return {file.path.name.partition(f"-{VERSION}")[0]: file.path for file in packages.files}


def file_names(packages: BuiltPackages) -> list[str]:
    """Return the names of the packages' files, in the order in which they are told."""
    return [file.path.name for file in packages.files]


def read_info(wheel: Path, name: str) -> str:
    """Return a file of a wheel's ``.dist-info``."""
    members = read_members(wheel)
    (path,) = [path for path in members if path.endswith(f".dist-info/{name}")]
    return members[path].decode()


def read_metadata(wheel: Path) -> str:
    """Return the METADATA of a wheel."""
    return read_info(wheel, "METADATA")


def names_with(text: str, names: Iterable[str]) -> set[str]:
    """Return the names that hold a text."""
    return {name for name in names if text in name}


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel requires."""
    return re.findall("^Requires-Dist: (.*)$", read_metadata(wheel), re.MULTILINE)


def read_dist_info(packages: BuiltPackages) -> ModuleType:
    """Return the module of the sdist that knows the packages."""
    sdist = paths(packages)["rocm"]
    return run_dist_info(read_sdist_member(sdist, "src/rocm_sdk/_dist_info.py"))


def devel_links(wheel: Path) -> dict[str, str]:
    """Return the links that the development package makes when it is expanded."""
    stream = io.BytesIO(read_members(wheel)["rocm_sdk_devel/_devel.tar"])
    with tarfile.open(fileobj=stream) as archive:
        return {link.name: link.linkname for link in archive}


# Unsplit packages


def test_builds_libraries_for_each_family_of_an_unsplit_set(
    unsplit_packages: BuiltPackages,
) -> None:
    tag = f"{VERSION}-py3-none-linux_x86_64.whl"

    assert file_names(unsplit_packages) == [
        f"rocm-{VERSION}.tar.gz",
        f"rocm_sdk_core-{tag}",
        f"rocm_sdk_libraries_gfx94x_dcgpu-{tag}",
        f"rocm_sdk_libraries_gfx110x_all-{tag}",
        f"rocm_sdk_devel-{tag}",
    ]
    assert unsplit_packages.plan.built_families == FAMILIES


def test_leaves_packages_and_a_note_in_the_output_folder(
    unsplit_packages: BuiltPackages,
) -> None:
    folder = unsplit_packages.files[0].path.parent

    assert {path.name for path in folder.iterdir()} == {".packed.json", *file_names(unsplit_packages)}


def test_takes_the_version_from_the_artifacts(
    unsplit_packages: BuiltPackages,
) -> None:
    assert unsplit_packages.plan.dist_info.version == VERSION


def test_names_artifacts_that_no_package_takes(
    unsplit_packages: BuiltPackages,
) -> None:
    assert unsplit_packages.plan.unused_artifacts == (
        "blas_test_gfx110X-all",
        "blas_test_gfx94X-dcgpu",
        "hiptensor_lib_generic",
    )


def test_puts_programs_headers_and_the_runtime_into_the_core_package(
    unsplit_packages: BuiltPackages,
) -> None:
    members = package_members(paths(unsplit_packages)["rocm_sdk_core"])

    assert members >= {
        "_rocm_sdk_core/__init__.py",
        "_rocm_sdk_core/bin/hipcc",
        "_rocm_sdk_core/include/hip/hip.h",
        "_rocm_sdk_core/share/therock/dist_info.json",
        "rocm_sdk_core/_cli.py",
    }
    assert names_with("cmake", members) == set()


def test_puts_a_familys_libraries_into_a_folder_of_its_own(
    unsplit_packages: BuiltPackages,
) -> None:
    members = package_members(paths(unsplit_packages)["rocm_sdk_libraries_gfx110x_all"])

    assert "_rocm_sdk_libraries_gfx110X_all/lib/libhipblas.so.3" in members
    assert "rocm_sdk_libraries_gfx110X_all/__init__.py" in members


def test_puts_all_else_into_the_development_package(
    unsplit_packages: BuiltPackages,
) -> None:
    wheel = paths(unsplit_packages)["rocm_sdk_devel"]

    assert names_with("_rocm_sdk_devel/", package_members(wheel)) == {
        "_rocm_sdk_devel/__init__.py",
        "_rocm_sdk_devel/include/hipblas.h",
        "_rocm_sdk_devel/include/rocprim/x.hpp",
        "_rocm_sdk_devel/lib/cmake/hip/hip.cmake",
    }
    assert devel_links(wheel) == {"_rocm_sdk_devel/llvm": "lib/llvm"}


def test_gives_programs_of_the_development_package_an_rpath(unsplit_set: Path) -> None:
    """LD_LIBRARY_PATH comes before a RUNPATH, and may lead to another ROCm."""
    folder = write_artifact(unsplit_set, "prim_dev_generic", {"lib/rocfft_rtc_helper": ""})
    (program,) = folder.rglob("rocfft_rtc_helper")
    program.write_bytes(elf_file(is_program=True, needed=["libamdhip64.so.7"], runpath="$ORIGIN"))

    wheel = paths(build(build_request(unsplit_set)))["rocm_sdk_devel"]

    content = read_members(wheel)["_rocm_sdk_devel/lib/rocfft_rtc_helper"]
    facts = elf.read_needs(io.BytesIO(content), "rocfft_rtc_helper")
    assert facts is not None
    assert facts.is_rpath
    assert facts.search == ("$ORIGIN",)


# Split packages


def test_builds_one_device_package_for_each_target_of_a_split_set(
    split_packages: BuiltPackages,
) -> None:
    assert list(paths(split_packages)) == [
        "rocm",
        "rocm_sdk_core",
        "rocm_sdk_libraries",
        *(f"rocm_sdk_device_{target}" for target in SPLIT_TARGETS),
        "rocm_sdk_devel",
    ]
    assert split_packages.plan.built_families == SPLIT_TARGETS


def test_puts_libraries_without_device_code_into_one_package(
    split_packages: BuiltPackages,
) -> None:
    assert package_members(paths(split_packages)["rocm_sdk_libraries"]) == {
        "_rocm_sdk_libraries/__init__.py",
        "_rocm_sdk_libraries/.kpack/blas_lib.kpm",
        "_rocm_sdk_libraries/lib/libhipblas.so.3",
        "_rocm_sdk_libraries/lib/librpp.so.2",
        "rocm_sdk_libraries/__init__.py",
        "rocm_sdk_libraries/_dist_info.py",
    }


@pytest.mark.parametrize(
    ("package", "required_packages"),
    [
        ("core", []),
        ("libraries", ["core"]),
        ("device_gfx942", ["libraries"]),
        ("devel", ["core"]),
    ],
)
def test_requires_the_package_below_in_the_same_version(
    split_packages: BuiltPackages, package: str, required_packages: list[str]
) -> None:
    wheel = paths(split_packages)[f"rocm_sdk_{package}"]

    assert requirements(wheel) == [f"rocm-sdk-{name}=={VERSION}" for name in required_packages]
    assert "\nRequires-Python: >=3.10\n" in read_metadata(wheel)


def test_puts_no_device_code_into_the_development_package(
    split_packages: BuiltPackages,
) -> None:
    wheel = paths(split_packages)["rocm_sdk_devel"]

    names = [*package_members(wheel), *devel_links(wheel)]

    assert "_rocm_sdk_devel/include/hipblas.h" in names
    assert names_with("gfx942", names) == set()


def test_builds_a_profiler_where_artifacts_have_one(split_set: Path) -> None:
    files = {
        "bin/rocprof-sys-run": "#!/bin/sh\n",
        "share/rocprofiler-systems/x": "x",
        "etc/other": "not for the profiler",
    }
    write_artifact(split_set, "rocprofiler-systems_run_generic", files)

    packages = build(build_request(split_set))

    wheel = paths(packages)["rocm_profiler"]
    members = package_members(wheel)
    assert {
        "_rocm_profiler/bin/rocprof-sys-run",
        "rocm_profiler/_cli.py",
    } <= members
    assert "_rocm_profiler/etc/other" not in members
    assert requirements(wheel) == [f"rocm-sdk-core=={VERSION}"]
    assert read_dist_info(packages).ALL_PACKAGES["profiler"].extra == "profiler"
    assert [file.path for file in planned_files(packages.plan) if file.how == "left out"] == ["etc/other"]


def test_gives_each_program_of_the_profiler_an_entry_point(split_set: Path) -> None:
    write_artifact(
        split_set,
        "rocprofiler-systems_run_generic",
        {"bin/rocprof-sys-run": "#!/bin/sh\n"},
    )

    packages = build(build_request(split_set))

    wheel = paths(packages)["rocm_profiler"]
    entry_point = "rocprof-sys-run = rocm_profiler._cli:rocprof_sys_run"
    assert entry_point in read_info(wheel, "entry_points.txt")
    compile(read_members(wheel)["rocm_profiler/_cli.py"], "_cli.py", "exec")


# Requests


def test_puts_suffix_and_platform_tag_into_names(split_set: Path) -> None:
    request = replace(build_request(split_set), suffix="_n1", platform_tag="manylinux_2_28_x86_64")

    packages = build(request)

    tags: set[str] = set()
    folders: set[str] = set()
    for file in packages.files:
        if file.path.suffix == ".whl":
            tags.add(file.path.stem.rpartition("-")[2])
            folders.update(member.partition("/")[0] for member in package_members(file.path))
    assert tags == {"manylinux_2_28_x86_64"}
    assert folders == {
        "_rocm_sdk_core_n1",
        "rocm_sdk_core",
        "_rocm_sdk_libraries_n1",
        "rocm_sdk_libraries",
        "_rocm_sdk_devel_n1",
        "rocm_sdk_devel",
    }
    devel = read_dist_info(packages).ALL_PACKAGES["devel"]
    assert devel.get_py_package_name() == "_rocm_sdk_devel_n1"


@pytest.mark.parametrize(
    ("field", "value", "subject"),
    [
        ("version", "latest", "latest"),
        ("families", ("gfx94X-dgpu",), "gfx94X-dcgpu"),
        ("suffix", "-1", "-1"),
        ("platform_tag", "linux x86", "linux x86"),
    ],
)
def test_refuses_a_request_with_a_bad_value(
    unsplit_set: Path, field: str, value: object, subject: str
) -> None:
    request = build_request(unsplit_set)

    with pytest.raises(UsageError, match=subject):
        build(replace(request, **{field: value}))  # type: ignore[arg-type]


def test_writes_nothing_where_the_plan_is_refused(split_set: Path) -> None:
    write_artifact(split_set, "fft_lib_gfx942", {"lib/plan.db": "one"})
    write_artifact(split_set, "fft_lib_gfx1100", {"lib/plan.db": "another"})
    request = build_request(split_set)

    with pytest.raises(ArtifactError):
        build(request)

    assert not request.output_dir.exists()


@pytest.mark.parametrize("prefix", ["", "lib/llvm/"])
def test_warns_of_a_cmake_package_that_needs_what_no_package_holds(
    split_set: Path, capsys: pytest.CaptureFixture[str], prefix: str
) -> None:
    config = f"{prefix}lib/cmake/hip/hip-targets.cmake"
    checked_files = '"${_IMPORT_PREFIX}/lib/libhere.so.1" "${_IMPORT_PREFIX}/lib/libgone.so.1"'
    text = f"list(APPEND _cmake_import_check_files_for_hip::hip {checked_files} )\n"
    write_artifact(
        split_set,
        "core-hip_dev_generic",
        {config: text, f"{prefix}lib/libhere.so.1": "x"},
    )

    build(build_request(split_set))

    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "find_package" in line]
    assert config in warning
    assert f"{prefix}lib/libgone.so.1" in warning
    assert "libhere" not in warning


# Families that contradict each other


def test_refuses_families_with_different_files_in_one_place(
    unsplit_set: Path,
) -> None:
    write_artifact(unsplit_set, "blas_dev_gfx110X-all", {"include/hipblas.h": "other"})

    with pytest.raises(ArtifactError) as raised:
        build(build_request(unsplit_set))

    for family in FAMILIES:
        assert str(Path(f"blas_dev_{family}/x/stage/include/hipblas.h")) in raised.value.message


def test_refuses_two_artifacts_of_a_family_with_different_files(
    unsplit_set: Path,
) -> None:
    write_artifact(unsplit_set, "fft_dev_gfx110X-all", {"include/hipblas.h": "other"})

    with pytest.raises(ArtifactError) as raised:
        build(replace(build_request(unsplit_set), families=("gfx110X-all",)))

    for artifact in ("blas_dev_gfx110X-all", "fft_dev_gfx110X-all"):
        assert str(Path(f"{artifact}/x/stage/include/hipblas.h")) in raised.value.message


# Inputs


def test_takes_neither_output_nor_jobs_for_inputs(unsplit_set: Path) -> None:
    request = build_request(unsplit_set)

    assert inputs_of(replace(request, output_dir=unsplit_set, jobs=7)) == inputs_of(request)


def test_refuses_inputs_that_do_not_exist(unsplit_set: Path) -> None:
    with pytest.raises(MissingInputError):
        inputs_of(build_request(unsplit_set / "absent"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no permission to execute a file")
@pytest.mark.parametrize(("platform", "is_the_same"), [("windows", True), ("linux", False)])
def test_takes_permissions_into_packages_of_linux_alone(
    split_set: Path, tmp_path: Path, platform: Platform, *, is_the_same: bool
) -> None:
    (library,) = split_set.glob("core-hip_lib_generic/x/stage/lib/*")
    request = replace(build_request(split_set), platform=platform)
    library.chmod(0o644)
    digests = build(replace(request, output_dir=tmp_path / "plain")).digests
    library.chmod(0o755)

    packages = build(replace(request, output_dir=tmp_path / "program"))

    assert (packages.digests == digests) == is_the_same


# Stubs

STUB_ROOM = b"@@STUB-TARGET@@".ljust(1024, b"\0")


def test_fills_the_target_into_a_stub() -> None:
    target = "../lib/llvm/bin/clang"

    program = stub(b"<" + STUB_ROOM + b">", target)

    assert program == b"<" + target.encode().ljust(1024, b"\0") + b">"


@pytest.mark.parametrize(
    ("template", "target"),
    [
        pytest.param(b"nothing here", "x", id="no room"),
        pytest.param(STUB_ROOM, "x" * 1024, id="too long"),
    ],
)
def test_refuses_a_target_without_room(template: bytes, target: str) -> None:
    with pytest.raises(BuildError):
        stub(template, target)


@pytest.fixture
def stub_program(tmp_path: Path) -> Path:
    """Return a stub in ``bin`` for the program ``lib/target``, which prints its arguments and fails."""
    program = tmp_path / "bin" / "tool"
    program.parent.mkdir()
    program.write_bytes(stub(stub_template(), "../lib/target"))
    program.chmod(0o755)

    target = tmp_path / "lib" / "target"
    target.parent.mkdir()
    target.write_text('#!/bin/sh\necho "ran $0 with $1"\nexit 3\n', encoding="utf-8")
    target.chmod(0o755)
    return program


@pytest.mark.processes
def test_starts_the_target_of_a_stub_with_its_arguments(stub_program: Path) -> None:
    completed = process.capture([stub_program, "argument"], check=False)

    assert completed.returncode == 3
    assert completed.stdout.endswith("/lib/target with argument\n")


@pytest.mark.processes
def test_fails_where_the_target_of_a_stub_is_gone(stub_program: Path, tmp_path: Path) -> None:
    (tmp_path / "lib" / "target").unlink()

    completed = process.capture([stub_program], check=False)

    assert completed.returncode == 127
    assert "No such file" in completed.stderr


# Extras of the sdist


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing say which GPU the machine has."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)


@pytest.mark.usefixtures("no_gpu")
def test_offers_an_extra_for_each_package_and_target(
    split_packages: BuiltPackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist_info = read_dist_info(split_packages)
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx110X-all")

    extras = dist_info.get_extras()

    devices = {target: f"rocm-sdk-device-{target}=={VERSION}" for target in SPLIT_TARGETS}
    assert extras == {
        "libraries": [f"rocm-sdk-libraries=={VERSION}"],
        "devel": [f"rocm-sdk-devel=={VERSION}"],
        "device": [devices["gfx1100"], devices["gfx1101"]],
        "device-all": list(devices.values()),
        **{f"device-{target}": [requirement] for target, requirement in devices.items()},
    }
    assert dist_info.DEFAULT_TARGET_FAMILY == "gfx942"


@pytest.mark.usefixtures("no_gpu")
def test_limits_the_extras_of_targets_to_their_platforms(
    split_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(
        build_request(split_set),
        linux_families=("gfx942",),
        windows_families=("gfx1100", "gfx1150"),
    )
    dist_info = read_dist_info(build(request))
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx942")

    extras = dist_info.get_extras()

    assert extras["device-gfx942"] == [f'rocm-sdk-device-gfx942=={VERSION} ; sys_platform == "linux"']
    assert extras["device-gfx1100"] == [f"rocm-sdk-device-gfx1100=={VERSION}"]
    assert extras["device-gfx1150"] == [f'rocm-sdk-device-gfx1150=={VERSION} ; sys_platform == "win32"']
    assert len(extras["device-all"]) == 4


@pytest.mark.usefixtures("no_gpu")
def test_warns_where_no_gpu_and_no_variable_decides_among_targets(
    split_packages: BuiltPackages,
) -> None:
    dist_info = read_dist_info(split_packages)

    with pytest.warns(UserWarning, match="No GPU"):
        extras = dist_info.get_extras()

    assert extras["device"] == [f"rocm-sdk-device-gfx942=={VERSION}"]


@pytest.mark.usefixtures("no_gpu")
def test_takes_the_only_target_without_a_gpu(split_set: Path) -> None:
    dist_info = read_dist_info(build(replace(build_request(split_set), families=("gfx942",))))

    extras = dist_info.get_extras()

    for extra in ("device", "device-gfx942", "device-all"):
        assert extras[extra] == [f"rocm-sdk-device-gfx942=={VERSION}"]


# Plans that people read


@pytest.fixture
def plan(split_set: Path) -> PackagingPlan:
    """Return the plan to package the split set."""
    return make_plan(build_request(split_set))


def test_writes_a_plan_as_json(plan: PackagingPlan) -> None:
    document = json.loads(plan_json(plan, planned_files(plan)))

    assert document["split"] is True
    assert document["families"] == list(SPLIT_TARGETS)
    assert document["version"] == VERSION


def test_lists_what_becomes_of_each_file(plan: PackagingPlan) -> None:
    files: dict[tuple[str, str], PlannedFile] = {}
    for file in planned_files(plan):
        files[file.package, file.path] = file

    kernels = files["rocm-sdk-device-gfx942", ".kpack/blas_lib_gfx942.kpack"]
    assert kernels.how == "as it is"
    assert kernels.devel == "hard link"
    assert files["rocm-sdk-devel", "include/hipblas.h"].devel == "own"


def test_counts_the_files_of_each_package(plan: PackagingPlan) -> None:
    files = planned_files(plan)

    rows = {package: counts for package, *counts in table_rows(files)}

    assert COLUMNS == ("package", "as it is", "patched", "stub", "link", "left out")
    assert rows["rocm-sdk-device-gfx942"] == ["3", "", "", "", ""]
    assert sum(int(count) for counts in rows.values() for count in counts if count) == len(files)
