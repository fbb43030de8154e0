from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from core.errors import WheelError
from core.packages.candidates import Candidate, candidate_named, read_requirements, with_digest
from core.run import Platform
from tests.kit.memory_store import MemoryStore
from tests.kit.wheels import wheel_filename


def wheel_or_sdist(distribution: str, version: str, name: str = "") -> Candidate:
    """Return a candidate, by default a wheel for every Python."""
    filename = name or wheel_filename(name=distribution, version=version)
    return Candidate(name=filename, distribution=distribution, version=version, sha256="a" * 64)


# Versions


@pytest.mark.parametrize(
    ("specifier", "is_taken"),
    [("", False), (">=2", False), ("==2.*", False), ("==2", True), ("===2", True), ("==3", False)],
)
def test_a_yanked_file_is_taken_by_its_exact_version_alone(specifier: str, *, is_taken: bool) -> None:
    yanked = replace(wheel_or_sdist("torch", "2"), yanked=True)

    assert yanked.satisfies(SpecifierSet(specifier)) is is_taken


@pytest.mark.parametrize(
    ("requires_python", "is_for_it"),
    [(None, True), (">=3.10", True), (">=3.13", False), ("none at all", True)],
)
def test_a_file_runs_on_the_pythons_that_it_names(requires_python: str | None, *, is_for_it: bool) -> None:
    wheel = replace(wheel_or_sdist("torch", "2"), requires_python=requires_python)

    assert wheel.runs_on("3.12.4") is is_for_it


@pytest.mark.parametrize("name", ["numpy-2.0-py3-none-any.whl", "torch.whl", "therock-dist.tar.gz", "x.zip"])
def test_other_files_are_no_candidates(name: str) -> None:
    assert candidate_named(name, url=f"/{name}") is None


def test_a_file_without_a_place_has_no_digest() -> None:
    nowhere = replace(wheel_or_sdist("torch", "2"), sha256=None)

    with pytest.raises(WheelError, match="torch-2"):
        with_digest(nowhere)
    with pytest.raises(WheelError, match="torch-2"):
        nowhere.require_digest()


# Files for a Python and a platform


@pytest.mark.parametrize(
    ("name", "is_for_it"),
    [
        ("torch-2-cp312-cp312-linux_x86_64.whl", True),
        ("torch-2-cp311-cp311-linux_x86_64.whl", False),
        ("torch-2-cp313-cp313t-linux_x86_64.whl", False),
        ("torch-2-cp39-abi3-linux_x86_64.whl", True),
        ("torch-2-py3-none-any.whl", True),
        ("torch-2-py2.py3-none-any.whl", True),
        ("torch-2-cp311-none-any.whl", False),
        ("rocm-7.1.tar.gz", True),
    ],
)
@pytest.mark.parametrize("platform", [None, "linux"])
def test_tells_by_its_tags_whether_a_file_is_for_a_python(
    name: str, platform: Platform | None, *, is_for_it: bool
) -> None:
    assert wheel_or_sdist("torch", "2", name).fits("cp312", platform) is is_for_it


@pytest.mark.parametrize(
    ("name", "is_for_it"),
    [
        ("torch-2-cp312-cp312-linux_x86_64.whl", False),
        ("torch-2-cp312-cp312-win_amd64.whl", True),
        ("torch-2-py3-none-any.whl", True),
        ("rocm-7.1.tar.gz", True),
    ],
)
def test_tells_by_its_tags_whether_a_file_is_for_a_platform(name: str, *, is_for_it: bool) -> None:
    assert wheel_or_sdist("torch", "2", name).fits(platform="windows") is is_for_it


# What files require


def test_an_sdist_requires_nothing_before_it_is_built() -> None:
    sdist = wheel_or_sdist("rocm", "7.1", "rocm-7.1.tar.gz")

    assert read_requirements(sdist, MemoryStore()) == ()
