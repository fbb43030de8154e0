"""Who may import whom."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from core.cli.options import ROOT
from tests.kit import source_code
from tests.kit.source_code import PACKAGES, relative

# Packages of the tests that hold no tests, and so may be imported by them.
TEST_TOOLS = ("tests.kit", "tests.bench", "tests.promises")

NOT_IN_PACKAGES = ("tests", "docs", "tasks", "noxfile")


def test_packages_import_only_those_below_them() -> None:
    assert list(upward_imports()) == []


def upward_imports() -> Iterator[str]:
    """Yield what a module of a package imports and may not."""
    for module in source_code.package_modules():
        package = relative(module).partition("/")[0]
        packages_above = PACKAGES[PACKAGES.index(package) + 1 :]
        for name in source_code.imported_names(module):
            if name.partition(".")[0] in {*packages_above, *NOT_IN_PACKAGES}:
                yield f"{relative(module)} imports {name}"


def test_no_module_imports_itself_through_others() -> None:
    modules = {source_code.module_name(path): path for path in source_code.package_modules()}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, path in modules.items():
        imports = source_code.imported_at_runtime(path) & modules.keys()
        # `from core import files` names the package, too, which the module is a part of.
        sorter.add(name, *(imports - {name, name.rpartition(".")[0]}))

    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(f"These modules import each other in a circle: {' -> '.join(error.args[1])}")


def test_temporary_folders_are_made_in_one_place() -> None:
    assert list(makers_of_temporary_folders()) == [], "core.temporary makes those that a later run removes"


def makers_of_temporary_folders() -> Iterator[str]:
    """Yield the modules that make temporary folders or files that stay where their program is killed."""
    makers = ("tempfile.TemporaryDirectory(", "tempfile.mkdtemp(", "tempfile.mkstemp(", "NamedTemporaryFile(")
    for module in source_code.package_modules():
        text = module.read_text(encoding="utf-8")
        # Templates are parts of wheels, which run elsewhere.
        if "templates" not in module.parts and any(maker in text for maker in makers):
            yield relative(module)


def test_tests_import_no_other_tests() -> None:
    assert list(imports_of_tests()) == [], "what helps two tests belongs in tests/kit"


def imports_of_tests() -> Iterator[str]:
    """Yield what a module of the tests imports from another one."""
    for module in source_code.modules_of_tests():
        for name in source_code.imported_names(module):
            if name.startswith("tests.") and not name.startswith(TEST_TOOLS):
                yield f"{relative(module)} imports {name}"


def test_helpers_of_tests_lie_in_the_kit() -> None:
    assert list(helper_modules()) == [], "what helps tests belongs in tests/kit"


def helper_modules() -> Iterator[str]:
    """Yield the modules outside of the kit that pytest does not collect."""
    for module in source_code.modules_of_tests():
        is_collected = module.name.startswith("test_") or module.name == "conftest.py"
        if not is_collected and not source_code.module_name(module).startswith(TEST_TOOLS):
            yield relative(module)


def test_the_kit_holds_no_tests() -> None:
    assert not list((ROOT / "tests" / "kit").rglob("test_*.py"))
