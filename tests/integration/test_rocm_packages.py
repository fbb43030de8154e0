"""The sample's artifacts, packaged, installed, used, compiled with and removed again."""

import ctypes
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from core import process
from core.errors import ProcessError
from core.files import sha256
from core.wheel.record import require_sound
from pytorch_build.check import Finding
from pytorch_build.check.device_code import file_facts
from pytorch_build.check.run import check_wheels
from rocm_packaging.packages.build import BuildRequest, BuiltPackages, build
from rocm_packaging.sample import FAMILIES, ROCM_VERSION, ensure_artifacts
from rocm_packaging.sample.facts import FAMILY_TARGETS
from rocm_packaging.sdk_report import read_report
from tests.kit.artifacts import PRELOADED
from tests.kit.rocm_environments import RocmEnvironment

FAMILY = "gfx94X-dcgpu"
LIBRARIES = f"rocm-sdk-libraries-{FAMILY}=={ROCM_VERSION}"


class Environment(RocmEnvironment):
    family = FAMILY
    setting = "family"


@pytest.fixture(scope="session")
def packages(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> BuiltPackages:
    """Return the packages of the sample's artifacts, for both families."""
    output = tmp_path_factory.mktemp("packages")
    return build(BuildRequest(artifact_dir=artifacts, output_dir=output, families=FAMILIES))


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
    packages: BuiltPackages,
    setuptools: Path,
) -> Environment:
    """Return a whole installation that tests only look at."""
    environment = Environment.create(tmp_path_factory.mktemp("shared") / "venv", packages, setuptools)
    environment.install(f"rocm[libraries,devel]=={ROCM_VERSION}")
    environment.rocm_sdk("init")
    return environment


@pytest.fixture
def environment(tmp_path: Path, packages: BuiltPackages, setuptools: Path) -> Environment:
    """Return an environment without ROCm."""
    return Environment.create(tmp_path / "venv", packages, setuptools)


@pytest.fixture
def installed(environment: Environment) -> Environment:
    """Return a whole installation that a test may change."""
    environment.install(f"rocm[libraries,devel]=={ROCM_VERSION}")
    return environment


def digests(root: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, and where each link leads."""
    contents: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        relative = str(path.relative_to(root))
        if path.is_symlink():
            contents[relative] = str(path.readlink())
        elif path.is_file():
            contents[relative] = sha256(path)
    return contents


def wheels_of(packages: BuiltPackages) -> list[Path]:
    """Return the wheels among packages."""
    return [file.path for file in packages.files if file.path.suffix == ".whl"]


def find_errors(wheels: list[Path]) -> list[Finding]:
    """Return the errors that the check of wheels finds."""
    return [finding for finding in check_wheels(wheels) if finding.severity == "error"]


# The sample and its packages


@pytest.mark.nightly
def test_the_sample_is_generated_once(artifacts: Path) -> None:
    marker = artifacts / "base_lib_generic" / "artifact_manifest.txt"
    inode = marker.stat().st_ino

    assert ensure_artifacts(artifacts) == artifacts

    assert marker.stat().st_ino == inode


def test_the_sample_is_always_the_same(artifacts: Path, tmp_path: Path) -> None:
    stale = tmp_path / "artifacts"
    stale.mkdir()
    (stale / ".sample-digest").write_text("old", encoding="utf-8")

    ensure_artifacts(stale)

    assert digests(stale) == digests(artifacts)


@pytest.mark.nightly
def test_the_sample_is_generated_again_where_a_file_was_lost(artifacts: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "artifacts"
    shutil.copytree(artifacts, damaged, symlinks=True)
    (damaged / "base_lib_generic" / "artifact_manifest.txt").unlink()

    ensure_artifacts(damaged)

    assert digests(damaged) == digests(artifacts)


def test_wheels_are_sound(packages: BuiltPackages) -> None:
    wheels = wheels_of(packages)

    assert len(wheels) == 5
    for wheel in wheels:
        require_sound(wheel)
    assert find_errors(wheels) == []


def test_wheels_are_always_the_same(artifacts: Path, packages: BuiltPackages, tmp_path: Path) -> None:
    request = BuildRequest(artifact_dir=artifacts, output_dir=tmp_path, families=FAMILIES, jobs=1)

    packages_of_one_job = build(request)

    assert packages_of_one_job.digests == packages.digests


def test_a_profiler_without_a_needed_library_is_packaged_and_fails(artifacts: Path, tmp_path: Path) -> None:
    incomplete = tmp_path / "artifacts"
    shutil.copytree(
        artifacts,
        incomplete,
        symlinks=True,
        ignore=shutil.ignore_patterns("libprofiler-hub*"),
    )
    request = BuildRequest(artifact_dir=incomplete, output_dir=tmp_path / "out", families=FAMILIES)

    errors = find_errors(wheels_of(build(request)))

    assert {error.where for error in errors} == {
        "_rocm_profiler/lib/librocprof-sys.so",
        "_rocm_profiler/lib/librocprof-sys.so.1",
    }
    assert all("libprofiler-hub.so.0" in error.message for error in errors)


# Checks of an installation


@pytest.mark.nightly
def test_a_missing_file_that_was_promised_fails_its_check(
    environment: Environment,
) -> None:
    environment.install(f"rocm[libraries,devel,profiler]=={ROCM_VERSION}")
    core = environment.site / "_rocm_sdk_core"
    profiler = environment.site / "_rocm_profiler"
    program = profiler / "bin/rocprof-sys-run"
    # not written in place: an installer may share its files among environments
    for path in (
        core / "lib/llvm/bin/lld",
        profiler / "lib/libprofiler-hub.so.0",
        program,
    ):
        path.unlink()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)

    tested = environment.rocm_sdk("test", check=False)

    assert tested.returncode == 1
    failures = {line.removeprefix("FAIL  ") for line in tested.stdout.splitlines() if line.startswith("FAIL")}
    assert failures == {
        "base: rocm-sdk-core is whole",
        "core: what it promises is there",
        "profiler: lib/librocprof-sys.so loads",
        "profiler: lib/librocprof-sys.so.1 loads",
        "profiler: rocprof-sys-run runs",
        "base: rocm-profiler is whole",
    }


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What `rocm-sdk test` found."""

    exit_code: int
    printed: str
    outcomes: Mapping[str, str]  # check -> its outcome and why

    def failed(self) -> set[str]:
        """Return the checks that failed."""
        return {name for name, outcome in self.outcomes.items() if outcome.startswith("failed")}


def run_checks(environment: Environment, report: Path, **variables: str) -> Checks:
    """Run `rocm-sdk test`, and read its report."""
    completed = environment.rocm_sdk("test", "--json", str(report), check=False, **variables)
    outcomes = {}
    for check in read_report(report.read_bytes()).checks:
        outcomes[f"{check.group}: {check.name}"] = f"{check.outcome} {check.text}"
    return Checks(exit_code=completed.returncode, printed=completed.stdout, outcomes=outcomes)


@pytest.fixture(scope="session")
def sound_checks(shared: Environment, tmp_path_factory: pytest.TempPathFactory) -> Checks:
    """Return the checks of a whole installation."""
    return run_checks(shared, tmp_path_factory.mktemp("sound") / "report.json")


def test_a_whole_installation_says_what_it_is(shared: Environment) -> None:
    root = shared.devel_root()

    assert shared.rocm_sdk("version").stdout == f"{ROCM_VERSION}\n"
    assert shared.rocm_sdk("targets").stdout == "gfx942\n"
    assert root == shared.site / "_rocm_sdk_devel"
    assert Path(shared.rocm_sdk("path", "--bin").stdout.strip()) == root / "bin"
    assert Path(shared.rocm_sdk("path", "--cmake").stdout.strip()) == root / "lib" / "cmake"


def test_a_whole_installation_expands_its_development_files(
    shared: Environment,
) -> None:
    root = shared.devel_root()

    assert (root / "lib/cmake/hip/hip-config.cmake").is_file()
    assert (root / "lib/llvm/amdgcn/bitcode/ocml.bc").read_bytes().startswith(b"BC\xc0\xde")
    assert not (shared.site / "rocm_sdk_devel" / "_devel.tar").exists()


def test_a_whole_installation_passes_its_checks(sound_checks: Checks) -> None:
    totals = re.search(
        r"(?m)^Ran (\d+) checks .* (\d+) passed, 0 failed, (\d+) skipped$",
        sound_checks.printed,
    )

    assert sound_checks.exit_code == 0, sound_checks.printed
    assert totals is not None
    assert int(totals[1]) == int(totals[2]) + int(totals[3]) > 100
    skipped_lines = [line for line in sound_checks.printed.splitlines() if line.startswith("skip")]
    reasons = {line.partition(" (")[2].rstrip(")") for line in skipped_lines}
    assert reasons == {"it traces the program that loads it", "it is not installed"}


def test_libraries_are_found_and_preloaded(shared: Environment) -> None:
    code = """
import ctypes, sys, rocm_sdk
paths = rocm_sdk.find_libraries(*sys.argv[1:])
assert len(paths) == len(sys.argv) - 1 and all(path.is_absolute() and path.is_file() for path in paths)
rocm_sdk.initialize_process(preload_shortnames=sys.argv[1:], check_version="7.99.*",
                            fail_on_version_mismatch=True, something_new=1)
everything = ctypes.CDLL(None)
count = ctypes.c_int(7)
print(everything.hipGetDeviceCount(ctypes.byref(count)), count.value)
matrix = ctypes.c_float * 4
a, b, c = matrix(1, 2, 3, 4), matrix(5, 6, 7, 8), matrix()
one, zero, handle = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_void_p()
assert everything.hipblasCreate(ctypes.byref(handle)) == 0
status = everything.hipblasSgemm(handle, 111, 111, 2, 2, 2, ctypes.byref(one), a, 2, b, 2,
                                 ctypes.byref(zero), c, 2)
print(status, list(c), everything.rocm_sample_registered())
"""
    lines = shared.run("-c", code, *PRELOADED).stdout.splitlines()
    # Column-major: [1 3; 2 4] * [5 7; 6 8].
    assert lines == ["100 0", "0 [23.0, 34.0, 31.0, 46.0] 10"]


@pytest.mark.nightly
def test_a_library_loads_by_itself_from_its_own_package(
    shared: Environment,
) -> None:
    code = """
import ctypes, rocm_sdk
ctypes.CDLL(str(rocm_sdk.find_libraries("hipblas")[0]))
print([line.split()[-1] for line in open("/proc/self/maps") if "libamdhip64" in line][0])
"""
    loaded = shared.run("-c", code, LD_LIBRARY_PATH="").stdout.strip()
    assert Path(loaded) == shared.site / "_rocm_sdk_core" / "lib" / "libamdhip64.so.7"


@pytest.fixture(scope="session")
def core_alone(
    tmp_path_factory: pytest.TempPathFactory,
    packages: BuiltPackages,
    setuptools: Path,
) -> Environment:
    """Return an installation without libraries and without a development tree."""
    environment = Environment.create(tmp_path_factory.mktemp("core") / "venv", packages, setuptools)
    environment.install(f"rocm=={ROCM_VERSION}")
    return environment


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("hipblas", f"pip install rocm[libraries]=={ROCM_VERSION}"),
        ("hipblass", "Unknown rocm library 'hipblass'"),
    ],
)
def test_errors_name_the_library_and_what_to_install(
    core_alone: Environment, library: str, message: str
) -> None:
    code = "import sys, rocm_sdk; rocm_sdk.find_libraries(sys.argv[1])"

    completed = core_alone.run("-c", code, library, check=False)

    assert "ModuleNotFoundError" in completed.stderr
    assert message in completed.stderr


@pytest.mark.parametrize("command", [("path", "--root"), ("init",)])
def test_commands_fail_without_the_development_package(
    core_alone: Environment, command: tuple[str, ...]
) -> None:
    completed = core_alone.rocm_sdk(*command, check=False)

    assert completed.returncode == 1
    assert "rocm-sdk-devel is not installed" in completed.stderr


@pytest.mark.nightly
def test_skips_the_checks_of_packages_that_are_not_installed(
    core_alone: Environment,
) -> None:
    tested = core_alone.rocm_sdk("test", check=False)

    assert tested.returncode == 0, tested.stdout
    assert "skip  libraries: all checks (the libraries are not installed)" in tested.stdout
    assert "skip  devel: all checks (the development tree is not installed)" in tested.stdout


@pytest.mark.nightly
def test_every_damage_fails_the_check_that_it_belongs_to(
    installed: Environment, sound_checks: Checks, tmp_path: Path
) -> None:
    installed.rocm_sdk("init")
    core = installed.site / "_rocm_sdk_core"
    library = next((core / "lib").glob("librocm_smi64.so.*"))
    # Not written in place: an installer may share its files among environments.
    library.unlink()
    library.write_bytes(b"no library")
    (installed.root / "bin" / "rocminfo").unlink()
    (installed.site / "_rocm_sdk_devel/lib/dangling.so").symlink_to("nothing")
    fft = next((installed.site / "_rocm_sdk_libraries_gfx94X_dcgpu/lib").glob("libhipfft.so.*"))
    fft.unlink()

    checks = run_checks(installed, tmp_path / "damaged.json")

    assert checks.exit_code == 1
    assert checks.failed() == {
        "base: rocm-sdk-core is whole",
        "base: rocm-sdk-libraries-gfx94x-dcgpu is whole",
        f"core: lib/{library.name} loads",
        "core: rocminfo runs",
        "core: initialize_process loads rocm_smi64",
        "core: initialize_process loads all of them",
        "libraries: initialize_process loads hipfft",
        "libraries: initialize_process loads all of them",
        "devel: no link dangles",
        f"devel: lib/{library.name} loads",
    }
    assert f"lib/{fft.name} is missing" in checks.outcomes["base: rocm-sdk-libraries-gfx94x-dcgpu is whole"]
    # Checks that both have come in the same order.
    in_both = checks.outcomes.keys() & sound_checks.outcomes.keys()
    assert [name for name in checks.outcomes if name in in_both] == [
        name for name in sound_checks.outcomes if name in in_both
    ]


@pytest.mark.nightly
def test_a_library_that_is_found_elsewhere_has_not_passed(shared: Environment, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    for path in (shared.site / "_rocm_sdk_core/lib").glob("*.so*"):
        (other / path.name).write_bytes(path.read_bytes())

    checks = run_checks(shared, tmp_path / "report.json", LD_PRELOAD=str(other / "libamdhip64.so.7"))

    outcome = checks.outcomes["core: lib/libamdhip64.so.7 loads"]
    assert outcome.startswith("failed 1 libraries come from elsewhere")


# Preparing a process


def initialize(environment: Environment, arguments: str = "", **variables: str) -> process.Completed:
    """Call `initialize_process` with arguments, as Python writes them."""
    code = f"import re, rocm_sdk; rocm_sdk.initialize_process({arguments})"
    return environment.run("-c", code, check=False, **variables)


@pytest.mark.parametrize("check", ["check_version='7.98*'", "check_version=re.compile('8.*')"])
def test_another_version_warns_or_fails(shared: Environment, check: str) -> None:
    warned = initialize(shared, check)
    failed = initialize(shared, f"{check}, fail_on_version_mismatch=True")

    assert "UserWarning" in warned.stderr
    assert warned.returncode == 0
    assert "RuntimeError" in failed.stderr


def test_a_variable_names_libraries_to_load(shared: Environment) -> None:
    loaded = initialize(shared, ROCM_SDK_PRELOAD_LIBRARIES="amdhip64; rccl,")
    refused = initialize(shared, ROCM_SDK_PRELOAD_LIBRARIES="nonesuch")
    ignored = initialize(shared, "env_override=False", ROCM_SDK_PRELOAD_LIBRARIES="nonesuch")

    assert loaded.returncode == 0, loaded.stderr
    assert "RuntimeError: ROCM_SDK_PRELOAD_LIBRARIES names 'nonesuch'" in refused.stderr
    assert ignored.returncode == 0, ignored.stderr


def test_refuses_a_family_that_the_distribution_has_not(
    shared: Environment,
) -> None:
    code = "import rocm_sdk; rocm_sdk.find_libraries('rccl')"

    refused = shared.run("-c", code, check=False, ROCM_SDK_TARGET_FAMILY="gfx900-dgpu")

    assert "Requested ROCM_SDK_TARGET_FAMILY=gfx900-dgpu is not available" in refused.stderr


# The development tree


def test_concurrent_first_uses_agree(installed: Environment) -> None:
    with ThreadPoolExecutor(6) as pool:
        calls = list(
            pool.map(
                lambda _: installed.rocm_sdk("path", "--root", check=False),
                range(6),
            )
        )

    errors = [call.stderr for call in calls]
    assert {call.returncode for call in calls} == {0}, errors
    assert {call.stdout.strip() for call in calls} == {str(installed.site / "_rocm_sdk_devel")}
    record = next(installed.site.glob("rocm_sdk_devel-*.dist-info")) / "RECORD"
    rows = record.read_text(encoding="utf-8").splitlines()
    assert len(rows) == len(set(rows))


def test_libraries_that_come_later_join_the_devel_tree(
    environment: Environment,
) -> None:
    environment.install(f"rocm[devel]=={ROCM_VERSION}")
    library = environment.devel_root() / "lib/libhipblas.so"
    assert not library.exists()

    environment.install(LIBRARIES)
    environment.rocm_sdk("path", "--root")

    payload = environment.site / "_rocm_sdk_libraries_gfx94X_dcgpu"
    assert library.samefile(payload / "lib/libhipblas.so.3")


def test_libraries_of_another_family_replace_those_in_the_devel_tree(
    installed: Environment,
) -> None:
    library = installed.devel_root() / "lib/libhipblas.so"

    installed.uninstall("rocm-sdk-libraries-gfx94x-dcgpu")
    installed.install(f"rocm-sdk-libraries-gfx110X-all=={ROCM_VERSION}")
    installed.rocm_sdk("init", "--quiet")

    payload = installed.site / "_rocm_sdk_libraries_gfx110X_all"
    assert library.samefile(payload / "lib/libhipblas.so.3")
    assert installed.rocm_sdk("targets").stdout == "gfx1100;gfx1101;gfx1102;gfx1103\n"


@pytest.mark.nightly
def test_refuses_a_development_package_of_another_version(installed: Environment, tmp_path: Path) -> None:
    installed.uninstall("rocm-sdk-devel")
    version = "7.98.0.dev0+sample"
    request = BuildRequest(
        artifact_dir=ensure_artifacts(tmp_path / "artifacts"),
        output_dir=tmp_path / "out",
        version=version,
    )
    (wheel,) = [path for path in wheels_of(build(request)) if path.name.startswith("rocm_sdk_devel-")]
    installed.install("--no-deps", str(wheel))

    refused = installed.rocm_sdk("init", check=False)

    assert refused.returncode == 1
    assert f"rocm-sdk-devel {version}" in refused.stderr
    assert ROCM_VERSION in refused.stderr


def test_an_interrupted_expansion_is_finished_and_removable(
    installed: Environment,
) -> None:
    # A folder where a link belongs stops the expansion half-way.
    blocked = installed.site / "_rocm_sdk_devel/lib/libamdhip64.so"
    blocked.mkdir(parents=True)
    stopped = installed.rocm_sdk("path", "--root", check=False)
    assert stopped.returncode == 1
    assert (installed.site / "rocm_sdk_devel/_devel.tar").exists()

    blocked.rmdir()
    installed.rocm_sdk("path", "--root")

    assert blocked.is_file()
    uninstall_everything(installed)


def uninstall_everything(environment: Environment) -> None:
    """Uninstall a whole installation, and require that nothing is left."""
    environment.uninstall("rocm", "rocm-sdk-core", "rocm-sdk-devel", "rocm-sdk-libraries-gfx94x-dcgpu")
    assert environment.rocm_files() == []


@pytest.mark.parametrize("is_expanded", [False, True])
def test_an_uninstall_leaves_nothing(installed: Environment, *, is_expanded: bool) -> None:
    if is_expanded:
        installed.rocm_sdk("init")

    uninstall_everything(installed)


def test_the_sdist_follows_the_machine(environment: Environment) -> None:
    environment.install(f"rocm[libraries]=={ROCM_VERSION}", family="gfx110X-all")

    assert environment.rocm_sdk("targets").stdout == "gfx1100;gfx1101;gfx1102;gfx1103\n"


def test_the_sdist_refuses_a_family_that_it_has_not(
    environment: Environment,
) -> None:
    with pytest.raises(ProcessError, match=r"gfx900-dgpu is not\s+available"):
        environment.install(f"rocm=={ROCM_VERSION}", family="gfx900-dgpu")


# Programs

KERNEL = Path(__file__).with_name("texts").joinpath("add.hip").read_text()


def compile_kernel(environment: Environment, folder: Path, *targets: str) -> Path:
    """Compile a kernel for gfx targets into a library; return the library."""
    (folder / "kernel.hip").write_text(KERNEL, encoding="utf-8")
    hipcc = Path(environment.rocm_sdk("path", "--bin").stdout.strip()) / "hipcc"
    options = [
        "-fPIC",
        "-MD",
        "-MF",
        "k.d",
        *(f"--offload-arch={target}" for target in targets),
    ]
    process.capture([hipcc, *options, "-c", "kernel.hip", "-o", "k.o"], cwd=folder)

    linker = process.which("c++")
    assert linker is not None
    process.capture([linker, "-shared", "-Wl,--gc-sections", "-o", "k.so", "k.o"], cwd=folder)
    return folder / "k.so"


def test_hipcc_compiles_for_every_target(shared: Environment, tmp_path: Path) -> None:
    targets = FAMILY_TARGETS["gfx110X-all"]

    library = compile_kernel(shared, tmp_path, *targets)

    facts = file_facts(library)
    assert facts is not None
    assert facts.targets == set(targets)
    assert "/hipcc-" not in (tmp_path / "k.d").read_text(encoding="utf-8")
    assert ctypes.CDLL(os.fspath(library)).run() == 507


def test_looking_for_a_gpu_expands_nothing(installed: Environment) -> None:
    completed = process.capture([installed.root / "bin" / "offload-arch"], check=False)

    assert completed.returncode == 1
    assert (installed.site / "rocm_sdk_devel" / "_devel.tar").exists()


def test_console_scripts_run_the_programs(shared: Environment) -> None:
    scripts = shared.root / "bin"

    rocm_path = process.capture([scripts / "hipconfig", "--rocmpath"]).stdout
    compiler_version = process.capture([scripts / "hipcc", "--version"]).stdout
    sdk_version = process.capture([scripts / "rocm-sdk", "version"]).stdout

    assert rocm_path == str(shared.site / "_rocm_sdk_devel")
    assert "HIP version: 7.99" in compiler_version
    assert sdk_version == f"{ROCM_VERSION}\n"
