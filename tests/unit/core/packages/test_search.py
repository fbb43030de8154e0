from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.errors import EnvironmentSetupError, WheelError
from core.packages.candidates import Candidate
from core.packages.search import (
    SdistRequirements,
    Selection,
    choose_packages,
    no_requirements,
    others_required_by_files,
    others_required_by_lines,
)
from core.packages.sources import linked_source
from tests.kit.machines import target_in
from tests.kit.wheels import write_sdist, write_wheel


@dataclass(frozen=True)
class Packages:
    """A folder of packages to choose from."""

    folder: Path

    def add(self, name: str, version: str, *requires: str, tag: str = "py3-none-any") -> None:
        """Write a wheel."""
        write_wheel(self.folder, name=name, version=version, requires=requires, tag=tag)

    def choose(
        self, *requirements: str, sdist_requirements: SdistRequirements = no_requirements
    ) -> Selection:
        """Choose packages for Python 3.12 on Linux."""
        return choose_packages(
            linked_source(str(self.folder)),
            requirements,
            python=target_in(self.folder / "env", version="3.12.4"),
            platform="linux",
            sdist_requirements=sdist_requirements,
        )


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    """Return a folder without packages."""
    return Packages(tmp_path / "dist")


# Our packages


def test_chooses_our_packages_and_what_they_require_of_ours(packages: Packages) -> None:
    packages.add("torch", "2.10.0", "triton==3.6.0; sys_platform == 'linux'")
    packages.add("triton", "3.6.0")
    packages.add("rocm", "7.1")

    choice = packages.choose("torch")

    assert choice.versions == {"torch": "2.10.0", "triton": "3.6.0"}
    assert all(len(file.require_digest()) == 64 for file in choice.files)


def test_gathers_what_is_required_of_others(packages: Packages) -> None:
    packages.add("torch", "2.10.0", "numpy>=2", "pywin32; os_name == 'nt'")

    assert packages.choose("torch", "pytest").others == ("numpy>=2", "pytest")


@pytest.fixture
def packages_with_extras(packages: Packages) -> Packages:
    """Return a torch whose extras require a package of ours and one of others, and an apex that has one."""
    packages.add(
        "torch", "2", "amd-torch-device-gfx942==2; extra == 'device-gfx942'", "numpy; extra == 'more'"
    )
    packages.add("amd-torch-device-gfx942", "2", "torch==2")
    packages.add("apex", "1", "torch[more]")
    return packages


@pytest.mark.parametrize(
    ("requirement", "names"),
    [("torch", {"torch"}), ("torch[device-gfx942]", {"torch", "amd-torch-device-gfx942"})],
)
def test_extras_count_where_they_are_required(
    packages_with_extras: Packages, requirement: str, names: set[str]
) -> None:
    assert set(packages_with_extras.choose(requirement).versions) == names


def test_extras_count_for_a_package_that_is_chosen_already(packages_with_extras: Packages) -> None:
    assert packages_with_extras.choose("torch", "apex").others == ("numpy",)


@pytest.fixture
def packages_of_several_versions(packages: Packages) -> Packages:
    """Return three versions of torch, and two torchvisions, of which only the older one has its torch."""
    for version in ("2.10.0a1", "2.10.0.dev5", "2.9.0"):
        packages.add("torch", version)
    packages.add("torchvision", "0.25.0", "torch==2.11.0")
    packages.add("torchvision", "0.24.0", "torch==2.9.0")
    return packages


def test_chooses_the_newest_version(packages_of_several_versions: Packages) -> None:
    # PEP 440: an alpha is newer than a development release.
    assert packages_of_several_versions.choose("torch").versions == {"torch": "2.10.0a1"}


@pytest.mark.parametrize("requirements", [["torchvision", "torch"], ["torch", "torchvision"]], ids=" ".join)
def test_chooses_an_older_version_where_the_newest_does_not_fit(
    packages_of_several_versions: Packages, requirements: Sequence[str]
) -> None:
    choice = packages_of_several_versions.choose(*requirements)

    assert choice.versions == {"torchvision": "0.24.0", "torch": "2.9.0"}


@pytest.mark.parametrize(
    ("requirement", "mentioned"),
    [
        ("torch==3", ["torch==3", "Python 3.12", "dist has 2"]),
        ("apex", ["no apex", "none of it"]),
        ("torch", ["triton==9", "torch-2-py3-none-any.whl", "has 3.6.0"]),
    ],
    ids=["version", "package", "requirement of a package"],
)
def test_names_what_is_missing_and_what_there_is(
    packages: Packages, requirement: str, mentioned: list[str]
) -> None:
    packages.add("torch", "2", "triton==9")
    packages.add("triton", "3.6.0")

    with pytest.raises(EnvironmentSetupError) as raised:
        packages.choose(requirement)

    assert all(name in raised.value.message for name in mentioned)
    assert "--find-links" in raised.value.hint


@pytest.mark.parametrize("tag", ["cp311-cp311-linux_x86_64", "cp312-cp312-win_amd64"])
def test_chooses_no_file_of_another_python_or_platform(packages: Packages, tag: str) -> None:
    packages.add("torch", "2", tag=tag)

    with pytest.raises(EnvironmentSetupError, match="no torch"):
        packages.choose("torch")


def test_chooses_a_file_for_the_python_and_platform(packages: Packages) -> None:
    packages.add("torch", "2", tag="cp312-cp312-manylinux_2_28_x86_64")

    assert packages.choose("torch").versions == {"torch": "2"}


def test_an_sdist_requires_what_the_caller_knows_of_its_extras(packages: Packages) -> None:
    write_sdist(packages.folder, name="rocm", version="7.1")
    packages.add("rocm-sdk-core", "7.1")
    questions: list[tuple[str, frozenset[str]]] = []

    def sdist_requirements(sdist: Candidate, extras: frozenset[str]) -> Sequence[str]:
        questions.append((sdist.distribution, extras))
        return ["rocm-sdk-core==7.1"]

    choice = packages.choose("rocm[libraries]", sdist_requirements=sdist_requirements)

    assert set(choice.versions) == {"rocm", "rocm-sdk-core"}
    assert ("rocm", frozenset({"libraries"})) in questions


# What chosen files require of others


def test_files_require_others_without_their_extras(packages: Packages) -> None:
    packages.add("torch", "2", "numpy>=2", "triton", "sympy; extra == 'opt'", "pywin32; os_name == 'nt'")
    source = linked_source(str(packages.folder))

    others = others_required_by_files(
        source,
        source.candidates("torch"),
        python=target_in(packages.folder / "env", version="3.12.4"),
        platform="linux",
    )

    assert others == ("numpy>=2",)


def test_lines_keep_the_markers_of_other_machines() -> None:
    lines = ["numpy>=2", "rocm==7.1", "sympy; extra == 'opt'", "pywin32; os_name == 'nt'"]

    assert others_required_by_lines(lines, where="torch") == ("numpy>=2", 'pywin32; os_name == "nt"')


def test_names_the_file_whose_requirement_cannot_be_read() -> None:
    with pytest.raises(WheelError, match="torch"):
        others_required_by_lines(["numpy=2"], where="torch")
