import importlib.machinery
import importlib.util
from types import ModuleType

import pytest

from pytorch_build.check.bundles import code_objects, read_bundles
from rocm_packaging.packages import layouts
from rocm_packaging.packages.layouts import packages
from rocm_packaging.sample import TEMPLATES
from rocm_packaging.sample.layout import DATA_FILES, FAMILY_TARGETS, LIBRARIES, data_files
from tests.kit.artifact_sets import PRELOADED


@pytest.fixture(scope="module")
def hipcc() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("sample_hipcc", str(TEMPLATES / "bin" / "hipcc"))
    spec = importlib.util.spec_from_loader("sample_hipcc", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_every_library_that_torch_preloads_is_there_and_known() -> None:
    assert set(PRELOADED) <= {library.short for library in LIBRARIES}
    core = [f"{lib.folder}/{lib.soname}" for lib in LIBRARIES if not lib.per_family]
    math = [f"{lib.folder}/{lib.soname}" for lib in LIBRARIES if lib.per_family]
    known = layouts.libraries_in("core", core, "linux") | layouts.libraries_in("libraries", math, "linux")
    assert known == {library.short for library in LIBRARIES} & layouts.library_globs("linux").keys()


def test_every_artifact_belongs_to_a_package() -> None:
    data = packages()
    common = {*data.core.artifacts, *data.profiler.artifacts, *data.devel.artifacts}
    unsplit = {*(one.artifact[0] for one in LIBRARIES), *(one.artifact[0] for one in DATA_FILES)}
    assert unsplit <= common | set(data.libraries.artifacts)
    assert {one.artifact[0] for one in data_files(split=True)} <= common | set(data.libraries.artifacts)


def test_hipcc_bundles_and_compresses_as_clang_does(hipcc: ModuleType) -> None:
    data = hipcc.bundle(["gfx942", "gfx1100"], b"code")
    for made in (data, hipcc.compressed(data)):
        (bundle,) = read_bundles(made)
        assert bundle.targets == {"gfx942", "gfx1100"}
        assert [bytes(code) for _, code in code_objects(made, bundle)] == [
            hipcc.code_object(target, b"code") for target in ("gfx942", "gfx1100")
        ]


@pytest.mark.parametrize("target", ["gfx", "sm_90", "gfx942x9", ""])
def test_hipcc_refuses_what_is_no_target(hipcc: ModuleType, target: str) -> None:
    with pytest.raises(hipcc.WrongUse):
        hipcc.code_object(target)


def test_the_split_variant_keeps_each_target_apart() -> None:
    files = data_files(split=True)
    assert set(DATA_FILES) < set(files)
    device = [file for file in files if file.artifact[2].startswith("gfx")]
    assert {file.artifact[2] for file in device} == {
        target for targets in FAMILY_TARGETS.values() for target in targets
    }
    assert {file.artifact[0] for file in device} <= set(packages().device.artifacts)
    assert all(file.artifact[2] in file.path for file in device)
