"""What is real comes from folders that are named.

`--sources DIR` holds repositories of upstream sources (pytorch, torchaudio, torchvision), `--rocm7 DIR` the
artifacts of a real ROCm 7 in both layouts (DIR/unsplit, DIR/split). `--root DIR` is the root folder of a
Linux in which programs of that ROCm run, `--therock DIR` a work tree of TheRock, whose own functions and
builder are compared with ours. `--torch-root DIR` is the root folder of a Debian that `torch_root/root.sh`
made fit for compiling torch, which `--compile` does. `--torch PYTHON` is the interpreter of an environment
that has torch, and the pytest that those sources' tests need (7 or 8 for those of torch 2.6),
`--torch-wheel FILE` the released wheel of torch that real projects are built against.

Tests that repeat a kind with other inputs, or take minutes, are marked as nightly: quick runs have
`-m "not nightly"`.
"""

from pathlib import Path

import pytest

from tests.kit.therock.checkout import TheRock, open_checkout
from tests.kit.upstream_inputs import OPTIONS, named_by

METAVARS = {"--torch": "PYTHON", "--torch-wheel": "FILE"}
REPOSITORIES = {"torch": "pytorch", "audio": "torchaudio", "vision": "torchvision"}


def pytest_addoption(parser: pytest.Parser) -> None:
    for option, description in OPTIONS.items():
        metavar = METAVARS.get(option, "DIR")
        parser.addoption(option, type=Path, metavar=metavar, help=description)
    parser.addoption(
        "--compile", action="store_true", help="compile all of torch: 40 to 100 minutes on two cores"
    )


rocm7_artifacts = named_by("--rocm7")
linux_root = named_by("--root")
therock_tree = named_by("--therock")
torch_python = named_by("--torch")
torch_root = named_by("--torch-root")
released_torch = named_by("--torch-wheel")
sources = named_by("--sources")


@pytest.fixture(scope="session")
def upstream_sources(sources: Path) -> dict[str, Path]:
    """Map projects to repositories, of those that are there."""
    repositories: dict[str, Path] = {}
    for project, name in REPOSITORIES.items():
        if (sources / name).is_dir():
            repositories[project] = sources / name
    return repositories


@pytest.fixture(scope="session")
def torch_sources(upstream_sources: dict[str, Path]) -> Path:
    """Return torch's repository; a test is skipped where it is not there."""
    if "torch" not in upstream_sources:
        pytest.skip("--sources has no pytorch")
    return upstream_sources["torch"]


@pytest.fixture(scope="session")
def therock(therock_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> TheRock:
    """Open the work tree of TheRock, whose functions answer questions."""
    return open_checkout(therock_tree, tmp_path_factory.mktemp("therock"))
