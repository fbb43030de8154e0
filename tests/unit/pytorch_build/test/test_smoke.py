"""The smoke tests, which run in environments without this project."""

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import process
from pytorch_build.components import COMPONENTS
from pytorch_build.test.smoke_run import SMOKE_TESTS

# What the packages that are tested bring, and pytest with the tests' own settings.
TESTED_MODULES = {component.module for component in COMPONENTS.values()} | {"apex_C", "rocm_sdk"}
ALLOWED_MODULES = {"pytest", "conftest", *TESTED_MODULES, *sys.stdlib_module_names}


def imported_packages(path: Path) -> Iterator[str]:
    """Yield the top-level package of every import statement in a file, in functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("path", sorted(SMOKE_TESTS.glob("*.py")), ids=lambda path: path.name)
def test_smoke_tests_need_nothing_but_pytest_and_the_packages_to_test(path: Path) -> None:
    assert set(imported_packages(path)) <= ALLOWED_MODULES


TORCH_WITHOUT_GPU = """
class cuda:
    @staticmethod
    def is_available():
        return False
__version__ = "2.10"
"""
TESTS_ON_GPU = "import pytest\n@pytest.mark.gpu\ndef test_gpu():\n    pass\ndef test_other():\n    pass\n"
TORCH_IS_EXPECTED = '{"torch": "2.10"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the settings of the smoke tests, and none of the tests."""
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(SMOKE_TESTS / name, tmp_path)
    return tmp_path


def run_pytest(folder: Path, **variables: str | None) -> process.Completed:
    """Run the tests of a folder, which may have modules beside them."""
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", folder]
    env = process.inherited(PYTHONPATH=str(folder), **variables)
    return process.capture(command, cwd=folder, env=env, check=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("gpu", "outcome"),
    [
        pytest.param(None, "1 passed, 1 skipped", id="no GPU in the machine"),
        pytest.param("gfx942", "1 passed, 1 error", id="a GPU that torch does not see"),
    ],
)
def test_only_a_machine_without_a_gpu_skips_the_tests_of_it(
    folder: Path, gpu: str | None, outcome: str
) -> None:
    (folder / "torch.py").write_text(TORCH_WITHOUT_GPU)
    (folder / "test_it.py").write_text(TESTS_ON_GPU)

    completed = run_pytest(folder, SMOKE_GPU=gpu, SMOKE_EXPECT=TORCH_IS_EXPECTED)

    assert outcome in completed.stdout
    assert "torch sees no GPU" in completed.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("miniature", "outcome"),
    [pytest.param("1", "1 skipped", id="miniature"), pytest.param(None, "1 error", id="real package")],
)
def test_only_a_miniature_is_excused_for_what_it_lacks(
    folder: Path, miniature: str | None, outcome: str
) -> None:
    (folder / "torch.py").write_text(TORCH_WITHOUT_GPU)
    (folder / "test_it.py").write_text(
        'import pytest\n@pytest.mark.needs("torch.bmm")\ndef test_it(): pass\n'
    )

    completed = run_pytest(folder, SMOKE_MINIATURE=miniature, SMOKE_EXPECT=TORCH_IS_EXPECTED)

    assert outcome in completed.stdout
    assert "torch.bmm" in completed.stdout


@pytest.mark.processes
def test_an_environment_without_torch_fails(folder: Path) -> None:
    shutil.copy(SMOKE_TESTS / "test_installed.py", folder)

    completed = run_pytest(folder, SMOKE_EXPECT=None)

    assert completed.returncode == 1
    assert "no distribution of a PyTorch build is installed" in completed.stdout
