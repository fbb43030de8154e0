"""Archives are judged as uv judges them: what it refuses is not published, and what it takes is."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import process
from core.archive.zips import read_archive
from core.errors import FatalError, WheelError
from core.wheel.record import require_sound
from tests.kit import zip_files
from tests.kit.environments import UV, download_locked_wheel
from tests.kit.servers import served

# Made by setuptools, flit, hatchling, scikit-build-core, and meson-python with auditwheel.
REAL_WHEELS = ("setuptools", "packaging", "pygments", "ninja", "numpy", "pip", "wheel")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for wheels and for uv's cache."""
    return tmp_path_factory.mktemp("forms")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Serve the folder."""
    with served(folder) as address:
        yield address


def is_installed_by_uv(wheel: str | Path, folder: Path) -> bool:
    """Return whether uv installs a wheel: a file, or one behind an address, which it reads as it arrives."""
    command: list[str | Path] = [UV, "pip", "install", "--quiet", "--no-config", "--no-index", "--no-deps"]
    command += ["--cache-dir", folder / "cache", "--python", sys.executable, "--target", folder / "target"]
    try:
        process.capture([*command, "--reinstall", "--refresh", wheel], env=process.inherited())
    except FatalError:
        return False
    return True


@pytest.mark.parametrize("form", zip_files.REFUSED)
@pytest.mark.nightly
def test_a_form_that_is_refused_here_is_refused_by_uv(form: str, folder: Path, address: str) -> None:
    wheel = zip_files.write_form(folder / form, zip_files.REFUSED[form])

    with pytest.raises(WheelError, match="demo"):
        read_archive(wheel)

    remote = f"{address}/{form.replace(' ', '%20')}/{wheel.name}"
    assert not (is_installed_by_uv(wheel, folder) and is_installed_by_uv(remote, folder))


@pytest.mark.parametrize("form", zip_files.ACCEPTED)
@pytest.mark.nightly
def test_a_form_that_is_accepted_here_is_installed_by_uv(form: str, folder: Path, address: str) -> None:
    wheel = zip_files.write_form(folder / form, zip_files.ACCEPTED[form])

    require_sound(wheel)

    remote = f"{address}/{form.replace(' ', '%20')}/{wheel.name}"
    assert is_installed_by_uv(wheel, folder)
    assert is_installed_by_uv(remote, folder)


@pytest.mark.parametrize("name", REAL_WHEELS)
@pytest.mark.nightly
def test_accepts_wheels_by_the_usual_tools(name: str, tmp_path: Path) -> None:
    require_sound(download_locked_wheel(name, tmp_path))
