import importlib.machinery
import importlib.util
from types import ModuleType

import pytest

from core.run import Platform
from pytorch_build.check.bundles import code_objects, read_bundles
from rocm_packaging.packages.layouts import libraries_in, library_globs, packages
from rocm_packaging.sample.data_files import data_files
from rocm_packaging.sample.facts import TARGETS, TEMPLATES, Variant
from rocm_packaging.sample.libraries import LIBRARIES, libraries_of
from rocm_packaging.sample.programs import compiled_artifacts
from tests.kit.artifacts import PRELOADED

SHORT_NAMES = {library.short for library in LIBRARIES}


@pytest.fixture(scope="module")
def hipcc() -> ModuleType:
    """Return the sample's compiler, which is a Python program."""
    loader = importlib.machinery.SourceFileLoader("sample_hipcc", str(TEMPLATES / "bin" / "hipcc"))
    spec = importlib.util.spec_from_loader("sample_hipcc", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def packaged_artifacts() -> set[str]:
    """Return the artifacts that packages are made of."""
    data = packages()
    return {
        *data.core.artifacts,
        *data.profiler.artifacts,
        *data.devel.artifacts,
        *data.libraries.artifacts,
    }


# Libraries and files


def test_has_every_library_that_torch_preloads() -> None:
    assert set(PRELOADED) <= SHORT_NAMES


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_puts_each_library_where_packages_know_it(platform: Platform) -> None:
    variant = Variant(platform=platform)
    core_files: list[str] = []
    family_files: list[str] = []
    for library in libraries_of(variant):
        files = family_files if library.per_family else core_files
        # a wheel of Linux has a library under its SONAME
        path = library.path(variant)
        files.append(path if platform == "windows" else f"{library.folder}/{library.soname}")

    known_libraries = libraries_in("core", core_files, platform)
    known_libraries |= libraries_in("libraries", family_files, platform)

    short_names = {library.short for library in libraries_of(variant)}
    assert known_libraries == short_names & library_globs(platform).keys()


VARIANTS = (
    Variant(),
    Variant(split=True),
    Variant(platform="windows"),
    Variant(split=True, platform="windows"),
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_belongs_to_packaged_artifacts_alone(variant: Variant) -> None:
    names = {library.artifact[0] for library in libraries_of(variant)}
    names.update(file.artifact.name for file in data_files(variant))
    names.update(artifact.name for artifact in compiled_artifacts(variant))

    assert names <= packaged_artifacts()


def test_has_nothing_on_windows_that_rocm_lacks_there() -> None:
    variant = Variant(split=True, platform="windows")

    names = {library.artifact[0] for library in libraries_of(variant)}
    names.update(file.artifact.name for file in data_files(variant))

    assert names.isdisjoint({"core-runtime", "rccl", "rocprofiler-sdk", "rpp"})


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_keeps_the_device_code_of_each_target_apart_in_a_split_sample(platform: Platform) -> None:
    targets: set[str] = set()
    for file in data_files(Variant(split=True, platform=platform)):
        target = file.artifact.target
        if target.startswith("gfx"):
            targets.add(target)
            assert file.artifact.name in packages().device.artifacts
            assert target in file.path

    assert targets == set(TARGETS)


# The sample's compiler


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
def test_bundles_code_as_clang_does(hipcc: ModuleType, *, is_compressed: bool) -> None:
    content = hipcc.bundle(["gfx942", "gfx1100"], b"code")
    if is_compressed:
        content = hipcc.compressed(content)

    (bundle,) = read_bundles(content)

    assert bundle.targets == {"gfx942", "gfx1100"}
    codes = [bytes(code) for _target, code in code_objects(content, bundle)]
    assert codes == [
        hipcc.code_object("gfx942", b"code"),
        hipcc.code_object("gfx1100", b"code"),
    ]


@pytest.mark.parametrize("target", ["gfx", "sm_90", "gfx942x9", ""])
def test_refuses_to_compile_for_what_is_no_target(hipcc: ModuleType, target: str) -> None:
    with pytest.raises(hipcc.WrongUse):
        hipcc.code_object(target)
