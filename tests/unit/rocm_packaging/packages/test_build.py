import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from core import process
from core.errors import ArtifactError, BuildError, FatalError, MissingInputError, UsageError
from rocm_packaging.packages.build import (
    COLUMNS,
    build,
    inputs_of,
    plan_json,
    planned_files,
    stub,
    stub_template,
    table_rows,
)
from rocm_packaging.packages.plan import make_plan
from rocm_packaging.verbs import build as verb
from tests.kit.artifact_sets import (
    VERSION,
    executed,
    in_sdist,
    names_in,
    path_of,
    request,
    write,
    write_base,
    write_whole,
)


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    return unsplit_set(tmp_path / "artifacts")


@pytest.fixture
def split_artifacts(tmp_path: Path) -> Path:
    return split_set(tmp_path / "artifacts")


def unsplit_set(root: Path) -> Path:
    """Write the smallest complete set, without one ELF file: nothing needs a process."""
    write_base(root, "gfx942", "gfx1100", split=False)
    write(root, "core-hip_lib_generic", **{"lib/libamdhip64.so.7": "hip"})
    write(root, "core-hip_dev_generic", **{"include/hip/hip.h": "h", "lib/cmake/hip/hip.cmake": "c"})
    write(root, "core-hip_run_generic", **{"bin/hipcc": "#!/bin/sh\n"})
    write(root, "amd-llvm_lib_generic", **{"lib/llvm/lib/x.bc": "bc"})
    write(root, "prim_dev_generic", **{"include/rocprim/x.hpp": "p"})
    write(root, "hiptensor_lib_generic", **{"lib/libhiptensor.so": "t"})
    for family in ("gfx94X-dcgpu", "gfx110X-all"):
        write(root, f"blas_lib_{family}", **{"lib/libhipblas.so.3": family})
        write(root, f"blas_dev_{family}", **{"include/hipblas.h": "same"})
        write(root, f"blas_test_{family}", **{"bin/hipblas-test": family})
    return root


def test_the_packages(artifacts: Path) -> None:
    built = build(request(artifacts, families=("gfx94X-dcgpu", "gfx110X-all")))
    files = {file.path.name: file.path for file in built.files}
    version = "7.99.0.dev0+sample"
    tag = f"{version}-py3-none-linux_x86_64.whl"
    assert list(files) == [
        f"rocm-{version}.tar.gz",
        f"rocm_sdk_core-{tag}",
        f"rocm_sdk_libraries_gfx94x_dcgpu-{tag}",
        f"rocm_sdk_libraries_gfx110x_all-{tag}",
        f"rocm_sdk_devel-{tag}",
    ]
    assert (built.plan.distribution.version, built.plan.built, built.plan.unused) == (
        version,
        ("gfx94X-dcgpu", "gfx110X-all"),
        ("blas_test_gfx110X-all", "blas_test_gfx94X-dcgpu", "hiptensor_lib_generic"),
    )
    expected = [".packed.json", *sorted(files)]
    assert sorted(path.name for path in (artifacts.parent / "out").iterdir()) == expected
    core = names_in(files[f"rocm_sdk_core-{tag}"])
    assert {
        "_rocm_sdk_core/__init__.py",
        "_rocm_sdk_core/bin/hipcc",
        "_rocm_sdk_core/include/hip/hip.h",
        "_rocm_sdk_core/share/therock/dist_info.json",
        "rocm_sdk_core/_cli.py",
    } <= core
    assert not any("cmake" in name for name in core)
    libraries = names_in(files[f"rocm_sdk_libraries_gfx110x_all-{tag}"])
    assert "_rocm_sdk_libraries_gfx110X_all/lib/libhipblas.so.3" in libraries
    assert "rocm_sdk_libraries_gfx110X_all/__init__.py" in libraries
    with zipfile.ZipFile(files[f"rocm_sdk_devel-{tag}"]) as wheel:
        assert [name for name in wheel.namelist() if name.startswith("_rocm_sdk_devel/")] == [
            "_rocm_sdk_devel/__init__.py",
            "_rocm_sdk_devel/include/hipblas.h",
            "_rocm_sdk_devel/include/rocprim/x.hpp",
            "_rocm_sdk_devel/lib/cmake/hip/hip.cmake",
        ]
        with tarfile.open(fileobj=wheel.open("rocm_sdk_devel/_devel.tar")) as archive:
            assert {one.name: one.linkname for one in archive} == {"_rocm_sdk_devel/llvm": "lib/llvm"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"version": "latest"}, "latest"),
        ({"families": ("gfx94X-dgpu",)}, "Did you mean 'gfx94X-dcgpu'"),
        ({"suffix": "-1"}, "-1"),
        ({"platform_tag": "linux x86"}, "linux x86"),
    ],
)
def test_wrong_requests_are_refused(artifacts: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build(request(artifacts, **wrong))


@pytest.mark.parametrize(
    ("missing", "kind", "said"),
    [
        ("core-hip_*", ArtifactError, "core-hip, of all GPUs, for the core package"),
        ("amd-llvm_*", ArtifactError, "amd-llvm, of all GPUs, for the core package"),
        ("blas_*", FatalError, "no GPU family"),
    ],
)
def test_part_of_a_set_is_refused(artifacts: Path, missing: str, kind: type[FatalError], said: str) -> None:
    for folder in artifacts.glob(missing):
        folder.rename(artifacts / f".{folder.name}")
    with pytest.raises(kind, match=said):
        build(request(artifacts, without=("rand", "miopen", "fft", "blas")))
    assert not (artifacts.parent / "out").exists()


WHOLE = {"gfx94X-dcgpu": ("gfx942",), "gfx90a-dcgpu": ("gfx90a",)}


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("layout", ["split", "unsplit"])
def test_a_set_that_holds_what_it_must_needs_no_excuse(tmp_path: Path, layout: str, platform: str) -> None:
    whole = write_whole(tmp_path, WHOLE, split=layout == "split", platform=platform)
    plan = make_plan(request(whole, without=(), platform=platform))
    assert plan.lacking == ()
    promised = plan.distribution.promised
    lld = f"lib/llvm/bin/lld{'.exe' if platform == 'windows' else ''}"
    assert {"lib/llvm/bitcode/oclc_isa_version_90a.bc", lld} <= {*promised["core"]}
    assert "include/hipfft/hipfft.h" in promised["devel"]


@pytest.mark.parametrize("how", ["absent", "empty", "dangling"])
@pytest.mark.parametrize(
    ("artifact", "thing", "name"),
    [
        ("amd-llvm_run_generic", "lib/llvm/bin/clang", "amd-llvm"),
        ("amd-llvm_run_generic", "lib/llvm/bin/lld", "bin"),
        ("amd-llvm_lib_generic", "lib/llvm/**/bitcode/oclc_isa_version_90a.bc", "bitcode"),
        ("core-hip_dev_generic", "include/hip/hip_runtime.h", "core-hip"),
        ("core-hip_lib_generic", "lib/libamdhip64.so*", "amdhip64"),
        ("fft_dev_generic", "lib/cmake/hipfft/hipfft-config.cmake", "hipfft"),
        ("blas_lib_generic", "lib/librocblas.so*", "rocblas"),
        ("blas_lib_gfx90a", "**/rocblas/**library/**gfx90a**", "rocblas-kernels"),
        ("blas_lib_gfx942", "**/hipblaslt/library/**gfx942**", "hipblaslt-*"),
        ("rocprofiler-systems_lib_generic", "lib/librocprof-sys.so*", "rocprof-sys"),
    ],
)
def test_what_artifacts_lack_is_named(tmp_path: Path, artifact: str, thing: str, name: str, how: str) -> None:
    whole = write_whole(tmp_path, WHOLE, split=True)
    file = whole / artifact / "x/stage" / path_of(thing)
    file.unlink()
    if how == "empty":
        file.touch()
    elif how == "dangling":
        file.symlink_to("nothing")
    with pytest.raises(ArtifactError) as raised:
        make_plan(request(whole, without=()))
    assert raised.value.message.splitlines()[1:] == [f"  {thing} of {artifact}"]
    assert make_plan(request(whole, without=(name,))).lacking == (f"{thing} of {artifact}",)


@pytest.mark.parametrize("prefix", ["", "lib/llvm/"])
def test_a_cmake_package_that_wants_what_no_package_holds_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str
) -> None:
    whole, config = write_whole(tmp_path, WHOLE, split=True), f"{prefix}lib/cmake/hip/hip-targets.cmake"
    wanted = (f'"${{_IMPORT_PREFIX}}/lib/lib{name}.so.1"' for name in ("here", "gone"))
    text = f"list(APPEND _cmake_import_check_files_for_hip::hip {' '.join(wanted)} )\n"
    write(whole, "core-hip_dev_generic", **{config: text, f"{prefix}lib/libhere.so.1": "library"})
    build(request(whole, without=(), jobs=1))
    (warning,) = (one for one in capsys.readouterr().err.splitlines() if "find_package" in one)
    assert warning == (
        f"warning: {config} wants {prefix}lib/libgone.so.1, which is in no package: "
        "CMake's find_package will fail there."
    )


def test_artifacts_with_empty_manifests_hold_nothing(tmp_path: Path) -> None:
    whole = write_whole(tmp_path, WHOLE, split=False)
    for one in whole.glob("amd-llvm_*"):
        (one / "artifact_manifest.txt").write_text("", encoding="utf-8")
    with pytest.raises(ArtifactError) as raised:
        make_plan(request(whole, without=()))
    lacking = raised.value.message.splitlines()[1:]
    assert {line.split(" of ")[1] for line in lacking} == {"amd-llvm_lib_generic", "amd-llvm_run_generic"}
    assert len(lacking) == len(set(lacking)) == 11
    assert "--without A,B" in raised.value.hint


def test_an_excuse_for_nothing_is_refused(tmp_path: Path) -> None:
    whole = write_whole(tmp_path, WHOLE, split=True)
    shutil.rmtree(whole / "rand_dev_generic")
    with pytest.raises(ArtifactError, match=r"include/hiprand/hiprand.h of rand_dev_\* \(missing\)"):
        make_plan(request(whole, without=("rocrand",)))
    with pytest.raises(UsageError, match="--without rnad: the artifacts lack nothing of that name"):
        make_plan(request(whole, without=("rand", "rnad")))


def test_an_incomplete_family_is_refused(artifacts: Path) -> None:
    write(artifacts, "fft_dev_gfx120X-all", **{"include/hipfft.h": "x"})
    with pytest.raises(ArtifactError, match="gfx120X-all are incomplete: they hold nothing for libraries"):
        build(request(artifacts))


def test_contradicting_families_are_apart(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(artifacts, "blas_dev_gfx110X-all", **{"include/hipblas.h": "other"})
    with pytest.raises(ArtifactError, match="different files for include/hipblas") as raised:
        build(request(artifacts))
    assert raised.value.hint == "Package one GPU family at a time."
    families = ("gfx110X-all", "gfx94X-dcgpu")
    out = artifacts.parent / "groups"
    whole = request(artifacts, families=families, output_dir=out / "both")
    apart = verb._apart(whole)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "in its own group: gfx110X-all, gfx94X-dcgpu." in said
    assert [(one.families, one.output_dir.name) for one in apart] == [((one,), one) for one in families]
    for family, files in zip(families, [build(one).files for one in apart], strict=True):
        assert f"blas_dev_{family}/x/stage/include/hipblas.h" in said
        libraries = f"rocm_sdk_libraries_{family.lower().replace('-', '_')}"
        made = [file.path.name.split("-7.99")[0] for file in files]
        assert made == ["rocm", "rocm_sdk_core", libraries, "rocm_sdk_devel"]
        info = in_sdist(files[0].path, "src/rocm_sdk/_dist_info.py")
        assert f"DEFAULT_TARGET_FAMILY = '{family}'".encode() in info
    (artifacts / "blas_dev_gfx110X-all/x/stage/include/hipblas.h").write_text("same", encoding="utf-8")
    assert verb._apart(whole) == (whole,)


def test_two_files_of_one_family_are_named_with_their_artifacts(artifacts: Path) -> None:
    write(artifacts, "fft_dev_gfx110X-all", **{"include/hipblas.h": "other"})
    with pytest.raises(ArtifactError) as raised:
        build(request(artifacts, families=("gfx110X-all",)))
    assert "blas_dev_gfx110X-all/x/stage/include/hipblas.h" in raised.value.message
    assert "fft_dev_gfx110X-all/x/stage/include/hipblas.h" in raised.value.message
    assert raised.value.hint.startswith("Fetch both artifacts again")


def test_the_inputs_follow_every_input(artifacts: Path) -> None:
    before = inputs_of(request(artifacts))
    assert inputs_of(request(artifacts, output_dir=artifacts, jobs=7)) == before
    found = [before]
    found.append(inputs_of(request(artifacts, version="10.1.0")))
    found.append(inputs_of(request(artifacts, families=("gfx110X-all",))))
    found.append(inputs_of(request(artifacts, epoch=5)))
    (artifacts / "blas_lib_gfx110X-all/x/stage/lib/libhipblas.so.3").write_text("new", encoding="utf-8")
    found.append(inputs_of(request(artifacts)))
    assert len({*map(str, found)}) == 5
    with pytest.raises(MissingInputError):
        inputs_of(request(artifacts / "absent"))


def test_stub_targets_are_filled_in() -> None:
    room = b"@@STUB-TARGET@@".ljust(1024, b"\0")
    made = stub(b"<" + room + b">", "../lib/llvm/bin/clang")
    assert made == b"<" + b"../lib/llvm/bin/clang".ljust(1024, b"\0") + b">"
    with pytest.raises(BuildError):
        stub(b"nothing here", "x")
    with pytest.raises(BuildError):
        stub(room, "x" * 1024)


@pytest.mark.processes
def test_a_stub_starts_its_target_under_its_own_name(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "tool"
    target = tmp_path / "lib" / "target"
    for path in (program, target):
        path.parent.mkdir()
    program.write_bytes(stub(stub_template(), "../lib/target"))
    target.write_text('#!/bin/sh\necho "ran $0 with $1"\nexit 3\n', encoding="utf-8")
    for path in (program, target):
        path.chmod(0o755)
    done = process.capture([program, "argument"], check=False)
    assert done.returncode == 3
    assert done.stdout.endswith("/lib/target with argument\n")
    target.unlink()
    done = process.capture([program], check=False)
    assert done.returncode == 127
    assert "No such file" in done.stderr


TARGETS = ("gfx942", "gfx1100", "gfx1101")


def split_set(root: Path) -> Path:
    """Write a split set: neutral libraries, and device code of three targets."""
    write_base(root, *TARGETS, split=True)
    write(root, "core-hip_lib_generic", **{"lib/libamdhip64.so.7": "hip"})
    write(root, "amd-llvm_lib_generic", **{"lib/llvm/lib/x.bc": "bc"})
    write(root, "blas_lib_generic", **{"lib/libhipblas.so.3": "host", ".kpack/blas_lib.kpm": "{}"})
    write(root, "blas_dev_generic", **{"include/hipblas.h": "h"})
    write(root, "rpp_lib_generic", **{"lib/librpp.so.2": "rpp"})
    for target in TARGETS:
        write(
            root,
            f"blas_lib_{target}",
            **{f".kpack/blas_lib_{target}.kpack": target, f"lib/rocblas/library/db_{target}.dat": target},
        )
    write(root, "blas_lib_gfx942:xnack+", **{".kpack/blas_lib_gfx942_xnack.kpack": "x"})
    return root


def metadata_of(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(name).decode()


def dist_info_of(sdist: Path) -> ModuleType:
    return executed(in_sdist(sdist, "src/rocm_sdk/_dist_info.py"))


def test_split_packages(split_artifacts: Path) -> None:
    built = build(request(split_artifacts))
    files = {file.path.name.partition(f"-{VERSION}")[0]: file.path for file in built.files}
    assert list(files) == [
        "rocm",
        "rocm_sdk_core",
        "rocm_sdk_libraries",
        *(f"rocm_sdk_device_{target}" for target in TARGETS),
        "rocm_sdk_devel",
    ]
    assert built.plan.built == TARGETS
    libraries = names_in(files["rocm_sdk_libraries"])
    assert libraries == {
        "_rocm_sdk_libraries/__init__.py",
        "_rocm_sdk_libraries/.kpack/blas_lib.kpm",
        "_rocm_sdk_libraries/lib/libhipblas.so.3",
        "_rocm_sdk_libraries/lib/librpp.so.2",
        "rocm_sdk_libraries/__init__.py",
        "rocm_sdk_libraries/_dist_info.py",
    }
    needs = {"core": [], "libraries": ["core"], "device_gfx942": ["libraries"], "devel": ["core"]}
    for name, needed in needs.items():
        said = metadata_of(files[f"rocm_sdk_{name}"])
        found = re.findall("^Requires-Dist: (.*)$", said, re.MULTILINE)
        assert found == [f"rocm-sdk-{one}=={VERSION}" for one in needed]
        assert "\nRequires-Python: >=3.10\n" in said
    with (
        zipfile.ZipFile(files["rocm_sdk_devel"]) as wheel,
        tarfile.open(fileobj=wheel.open("rocm_sdk_devel/_devel.tar")) as archive,
    ):
        names = [*wheel.namelist(), *archive.getnames()]
    assert "_rocm_sdk_devel/include/hipblas.h" in names
    assert not any("gfx942" in name for name in names)


@pytest.mark.parametrize(
    ("names", "path", "said"),
    [
        (("fft_lib_gfx942", "fft_lib_gfx1100"), "lib/plan.db", r"fft_lib_gfx942.*fft_lib_gfx1100"),
        # variants of one target
        (("blas_lib_gfx942:xnack+",), ".kpack/blas_lib_gfx942.kpack", r"blas_lib_gfx942:xnack\+"),
    ],
)
def test_files_of_two_packages_in_one_place_are_refused_by_both_names(
    split_artifacts: Path, names: tuple[str, ...], path: str, said: str
) -> None:
    for name in names:
        write(split_artifacts, name, **{path: "other"})
    with pytest.raises(ArtifactError, match=said):
        build(request(split_artifacts))
    assert not (split_artifacts.parent / "out").exists()


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (("blas_lib_generic", "fft_lib_gfx942"), "lib/plans"),  # the libraries and a device package
        (("fft_lib_gfx942", "fft_lib_gfx1100"), "lib/plans"),  # two device packages
        (("rand_lib_generic", "hipify_run_generic"), "share/x"),  # libraries and core, in the tree
    ],
)
def test_a_file_that_is_a_folder_is_refused(split_artifacts: Path, names: tuple[str, str], path: str) -> None:
    write(split_artifacts, names[0], **{path: "a file"})
    write(split_artifacts, names[1], **{f"{path}/x": "in a folder"})
    with pytest.raises(ArtifactError, match=f"{path} is a file .*{names[0]}.* and a folder .*{names[1]}"):
        make_plan(request(split_artifacts))


def test_spellings_of_a_name_are_refused_on_windows(split_artifacts: Path) -> None:
    write(split_artifacts, "rand_lib_gfx942", **{"lib/ROCBLAS/x": "x"})
    assert make_plan(request(split_artifacts)).built == TARGETS
    with pytest.raises(ArtifactError, match="Windows takes"):
        make_plan(request(split_artifacts, platform="windows"))


def test_a_family_takes_its_targets_artifacts_as_fetching_does(artifacts: Path) -> None:
    (artifacts / "blas_lib_gfx94X-dcgpu").rename(artifacts / "blas_lib_gfx942")
    for one in artifacts.glob("blas_*_gfx94X-dcgpu"):
        one.rename(artifacts / f".{one.name}")
    plan = make_plan(request(artifacts, families=("gfx94X-dcgpu",)))
    assert plan.unused == ("hiptensor_lib_generic",)
    assert [one.path for one in planned_files(plan) if one.package.endswith("dcgpu")] == [
        "lib/libhipblas.so.3"
    ]
    # of another family's targets, as before
    with pytest.raises(UsageError, match="gfx950-dcgpu"):
        make_plan(request(artifacts, families=("gfx950-dcgpu",)))


def test_artifacts_of_a_family_among_split_ones_are_refused(split_artifacts: Path) -> None:
    write(split_artifacts, "fft_lib_gfx94X-dcgpu", **{"lib/libhipfft.so.0": "x"})
    with pytest.raises(ArtifactError, match="fft_lib_gfx94X-dcgpu are of a GPU family"):
        make_plan(request(split_artifacts))


def test_a_target_that_was_built_and_has_no_artifacts_is_missed(split_artifacts: Path) -> None:
    (split_artifacts / "blas_lib_gfx1101").rename(split_artifacts / ".away")
    with pytest.raises(ArtifactError, match="gfx1101 are incomplete: they hold nothing for device"):
        build(request(split_artifacts))
    assert build(request(split_artifacts, families=("gfx1100",))).plan.built == ("gfx1100",)


def test_families_stand_for_their_targets(split_artifacts: Path) -> None:
    assert make_plan(request(split_artifacts, families=("gfx110X-all",))).built == ("gfx1100", "gfx1101")
    with pytest.raises(UsageError, match="gfx90a-dcgpu"):
        make_plan(request(split_artifacts, families=("gfx90a-dcgpu",)))


def test_extras(split_artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(
        request(split_artifacts, linux_families=("gfx942",), windows_families=("gfx1100", "gfx1150"))
    )
    info = dist_info_of(built.files[0].path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx110X-all")
    extras = info.get_extras()
    assert extras["libraries"] == [f"rocm-sdk-libraries=={VERSION}"]
    assert extras["devel"] == [f"rocm-sdk-devel=={VERSION}"]
    assert "profiler" not in extras
    device = {target: f"rocm-sdk-device-{target}=={VERSION}" for target in (*TARGETS, "gfx1150")}
    assert extras["device"] == [device["gfx1100"], device["gfx1101"]]
    assert extras["device-gfx942"] == [device["gfx942"] + ' ; sys_platform == "linux"']
    assert extras["device-gfx1100"] == [device["gfx1100"]]
    assert extras["device-gfx1150"] == [device["gfx1150"] + ' ; sys_platform == "win32"']
    assert len(extras["device-all"]) == 4
    assert info.DEFAULT_TARGET_FAMILY == "gfx942"


def test_no_gpu_and_no_choice_is_said_aloud(split_artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)
    info = dist_info_of(build(request(split_artifacts)).files[0].path)
    with pytest.warns(UserWarning, match="No GPU"):
        assert info.get_extras()["device"] == [f"rocm-sdk-device-gfx942=={VERSION}"]
    # the only target has its extra, and needs no warning
    built = build(request(split_artifacts, families=("gfx942",)))
    extras = dist_info_of(built.files[0].path).get_extras()
    for name in ("device", "device-gfx942", "device-all"):
        assert extras[name] == [f"rocm-sdk-device-gfx942=={VERSION}"]


def test_suffix_and_platform_tag(split_artifacts: Path) -> None:
    built = build(request(split_artifacts, suffix="_n1", platform_tag="manylinux_2_28_x86_64"))
    tags = {file.path.name.rpartition("-")[2] for file in built.files[1:]}
    assert tags == {"manylinux_2_28_x86_64.whl"}
    folders = {name.partition("/")[0] for file in built.files[1:] for name in names_in(file.path)}
    assert folders == {
        "_rocm_sdk_core_n1",
        "rocm_sdk_core",
        "_rocm_sdk_libraries_n1",
        "rocm_sdk_libraries",
        "_rocm_sdk_devel_n1",
        "rocm_sdk_devel",
    }
    assert (
        dist_info_of(built.files[0].path).ALL_PACKAGES["devel"].get_py_package_name() == "_rocm_sdk_devel_n1"
    )


def test_the_profiler_is_made_where_there_is_one(split_artifacts: Path) -> None:
    write(
        split_artifacts,
        "rocprofiler-systems_run_generic",
        **{"bin/rocprof-sys-run": "#!/bin/sh\n", "share/rocprofiler-systems/x": "x", "etc/other": "o"},
    )
    plan = make_plan(request(split_artifacts))
    built = build(request(split_artifacts))
    path = next(file.path for file in built.files if file.path.name.startswith("rocm_profiler-"))
    assert {"_rocm_profiler/bin/rocprof-sys-run", "rocm_profiler/_cli.py"} <= names_in(path)
    assert "_rocm_profiler/etc/other" not in names_in(path)
    assert f"Requires-Dist: rocm-sdk-core=={VERSION}" in metadata_of(path)
    with zipfile.ZipFile(path) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "rocprof-sys-run = rocm_profiler._cli:rocprof_sys_run" in archive.read(entry).decode()
        compile(archive.read("rocm_profiler/_cli.py"), "_cli.py", "exec")
    left = [one.path for one in planned_files(plan) if one.how == "left out"]
    assert left == ["etc/other"]
    assert dist_info_of(built.files[0].path).ALL_PACKAGES["profiler"].extra == "profiler"


def test_the_plan_can_be_read(split_artifacts: Path) -> None:
    plan = make_plan(request(split_artifacts))
    files = planned_files(plan)
    said = json.loads(plan_json(plan, files))
    assert (said["split"], said["families"], said["version"]) == (True, list(TARGETS), VERSION)
    by_path = {(one["package"], one["path"]): one for one in said["files"]}
    device = by_path["rocm-sdk-device-gfx942", ".kpack/blas_lib_gfx942.kpack"]
    assert (device["how"], device["devel"]) == ("as it is", "hard link")
    assert by_path["rocm-sdk-devel", "include/hipblas.h"]["devel"] == "own"
    assert COLUMNS[3] == "stub"
    by_package = {row[0]: row[1:] for row in table_rows(files)}
    assert by_package["rocm-sdk-device-gfx942"] == ("3", "", "", "", "")
    assert sum(int(cell or 0) for row in by_package.values() for cell in row) == len(files)
