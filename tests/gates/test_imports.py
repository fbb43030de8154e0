"""Who may import whom."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from core.cli.options import ROOT
from tests.kit import source_code
from tests.kit.source_code import PACKAGES, relative

# Packages of the tests that hold no tests, and so may be imported by them.
TEST_TOOLS = ("tests.kit", "tests.bench", "tests.promises")


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_those_below_them(package: str) -> None:
    packages_above = PACKAGES[PACKAGES.index(package) + 1 :]
    refused = {*packages_above, "tests", "docs", "tasks", "noxfile"}

    upward_imports = [
        f"{relative(path)} imports {name}"
        for path in source_code.package_modules()
        for name in sorted(source_code.imported_names(path))
        if relative(path).startswith(f"{package}/") and name.partition(".")[0] in refused
    ]

    assert upward_imports == []


def test_no_module_imports_itself_through_others() -> None:
    modules = {source_code.module_name(path): path for path in source_code.package_modules()}
    imports = {
        name: (source_code.imported_at_runtime(path) & modules.keys()) - {name, name.rpartition(".")[0]}
        for name, path in modules.items()
    }

    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"These modules import each other in a circle: {' -> '.join(error.args[1])}")


def is_test_or_conftest(path: Path) -> bool:
    return path.name.startswith("test_") or path.name == "conftest.py"


def test_tests_import_no_other_tests() -> None:
    refused_imports = [
        f"{relative(path)} imports {name}"
        for path in source_code.modules_of_tests()
        for name in sorted(source_code.imported_names(path))
        if name.startswith("tests.") and not name.startswith(TEST_TOOLS)
    ]

    assert refused_imports == []


def test_the_kit_and_tests_lie_apart() -> None:
    helpers = [
        relative(path)
        for path in source_code.modules_of_tests()
        if not is_test_or_conftest(path) and not source_code.module_name(path).startswith(TEST_TOOLS)
    ]

    assert helpers == [], "modules that help tests belong in tests/kit"
    assert not list((ROOT / "tests" / "kit").rglob("test_*.py"))
