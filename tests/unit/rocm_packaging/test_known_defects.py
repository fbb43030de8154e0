"""What is known to go wrong in the public packaging tools does not go wrong here.

Each line names a defect and the tests that fail where it comes in; the numbers are those of the
list that this project was started with.

 1. A download that fails leaves an incomplete set and succeeds:
    test_a_wrong_digest_fails_by_name_after_the_others_ended
    test_all_that_fail_are_named
 2. Device packages own the libraries' `__init__.py`, and take it along:
    test_device_packages_own_nothing_of_the_libraries
    test_without_a_device_package_the_libraries_still_work
 3. A missing package is no clear error, a pattern that does not match crashes:
    test_errors_say_what_to_install
    test_versions_and_variables_are_checked
 4. Two first uses at once crash:
    test_concurrent_first_uses_agree
 5. `rocm[devel]` without libraries has dangling links that nothing repairs:
    test_libraries_that_come_later_join_the_devel_tree
 6. What an uninstall leaves looks like an expanded tree:
    test_devel_installed_again_beside_a_device_package_expands_again
    test_a_left_over_folder_is_not_taken_for_an_expanded_tree
 7. Console scripts without a function:
    test_every_script_has_its_function
 8. `rocm[device]` takes a default in silence, and is offered where there is no such package:
    test_no_gpu_and_no_choice_is_said_aloud
    test_extras_are_of_packages_that_exist
 9. Builds are not reproducible, and sets give families their order:
    test_same_inputs_same_bytes
    test_same_inputs_same_bytes
    test_the_first_gpu_decides
10. Links of the profiler become full copies:
    test_the_profilers_libraries_are_written_once
11. Links of the development tree follow from the order of its archive:
    test_the_order_of_the_archive_does_not_show
12. `?` in a pattern stands for any length:
    test_a_question_mark_is_one_letter
13. A prerelease without a number is `rcNone`:
    test_what_makes_no_version_is_refused
14. A module's name holds `-`:
    test_dist_info_knows_its_package
15. What came meanwhile is not seen, by the cache of installed metadata:
    test_a_device_package_that_comes_later_joins_the_devel_tree

Found by reading:
 - Downloads are not checked, files that are there are trusted:
    test_another_digest_is_refused_and_leaves_what_was_there
    test_what_is_there_is_not_fetched_again
 - The listing of a run takes its neighbours and its logs too, and hides errors:
    test_only_archives_directly_in_the_runs_folder_are_artifacts
    test_a_store_error_of_the_listing_is_not_hidden
 - The last artifact with a path wins:
    test_different_files_of_one_path_are_refused
    test_files_of_two_packages_in_one_place_are_refused_by_both_names
 - Metadata follows the machine without saying so:
    test_the_sdist_says_that_its_requirements_are_made_later
 - Packages do not name core, nor their Pythons:
    test_every_wheel_names_what_it_needs
 - Looking for a GPU unpacks the development tree:
    test_console_scripts_run_the_programs
 - A missing profiler goes unnoticed, files of no package are lost in silence:
    test_the_profiler_is_made_where_there_is_one
    test_the_packages
"""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core.archive.compression import Workers
from core.binaries.elf import ElfFacts
from core.cli.options import ROOT
from rocm_packaging.artifacts import Entry
from rocm_packaging.packages import wheels
from rocm_packaging.packages.layouts import packages, payload_folder
from rocm_packaging.packages.payload import Licenses, Payload, plan
from rocm_packaging.packages.plan import DevelPlan, Distribution, Kind, RuntimePlan
from tests.unit.rocm_packaging.artifact_sets import executed, request

if TYPE_CHECKING:
    from types import ModuleType

    from core.wheel.writer import WrittenFile

TESTS = ROOT / "tests"
NAMED = re.findall(r"^    (test_\w+)$", __doc__ or "", re.MULTILINE)
FAMILIES = {"gfx1100": ("gfx1100",), "gfx942": ("gfx942",)}
LICENSES = Licenses(expression="MIT", files={})


def distribution(*, split: bool) -> Distribution:
    return Distribution(
        version="10.1.0",
        platform="linux",
        families=FAMILIES,
        libraries=(),
        split=split,
        linux=tuple(FAMILIES),
    )


def dist_info(*, split: bool) -> ModuleType:
    return executed(wheels.dist_info(distribution(split=split), ""))


def test_every_defect_is_listed() -> None:
    numbers = re.findall(r"^ ?(\d+)\. ", __doc__ or "", re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 16)]
    assert len(NAMED) > 25


def test_every_test_that_is_named_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    defined = {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}
    assert set(NAMED) - defined == set()


def test_extras_are_of_packages_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_SDK_TARGET_FAMILY", "gfx942")
    assert dist_info(split=False).get_extras() == {
        "libraries": ["rocm-sdk-libraries-gfx942==10.1.0"],
        "devel": ["rocm-sdk-devel==10.1.0"],
    }
    assert set(dist_info(split=True).get_extras()) == {
        *("libraries", "devel", "device", "device-all", "device-gfx1100", "device-gfx942")
    }


@pytest.mark.processes
@pytest.mark.parametrize("order", [("gfx942", "gfx1100"), ("gfx1100", "gfx942")])
def test_the_first_gpu_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str]
) -> None:
    program = tmp_path / "offload-arch"
    program.write_text("#!/bin/sh\n" + "".join(f"echo {target}\n" for target in order), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ROCM_SDK_TARGET_FAMILY", raising=False)
    assert dist_info(split=True).determine_target_family() == order[0]


def test_the_profilers_libraries_are_written_once() -> None:
    links = {
        "lib/librocprof-sys.so": "librocprof-sys.so.1",
        "lib/librocprof-sys.so.1": "librocprof-sys.so.1.0",
    }
    tree = {path: Entry(path=path, source=Path(path), link=link) for path, link in links.items()}
    real = "lib/librocprof-sys.so.1.0"
    tree[real] = Entry(path=real, source=Path(real))
    facts = ElfFacts(soname="librocprof-sys.so.1", is_rpath=False, dynamic=True, program=False)
    payload = plan(tree, {real: facts}, include=packages().profiler.include)
    assert list(payload.files) == ["lib/librocprof-sys.so.1"]


def test_a_question_mark_is_one_letter() -> None:
    tree = {path: Entry(path=path, source=Path(path)) for path in ("a1", "a12", "a/b", "a")}
    assert list(plan(tree, {}, exclude=["a?"]).files) == ["a12", "a/b", "a"]


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        ("core", []),
        ("libraries", ["rocm-sdk-core==10.1.0"]),
        ("profiler", ["rocm-sdk-core==10.1.0"]),
        ("device", ["rocm-sdk-libraries==10.1.0"]),
        ("devel", ["rocm-sdk-core==10.1.0"]),
    ],
)
def test_every_wheel_names_what_it_needs(tmp_path: Path, kind: Kind, needed: list[str]) -> None:
    with Workers(jobs=1) as workers:
        path = written(tmp_path, kind, workers).path
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(name).decode().splitlines()
    assert [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")] == needed
    assert "Requires-Python: >=3.10" in lines


def written(folder: Path, kind: Kind | str, workers: Workers) -> WrittenFile:
    made_of = request(folder, output_dir=folder)
    output = wheels.Output(distribution=distribution(split=True), request=made_of, workers=workers)
    if kind == "devel":
        empty = DevelPlan(files={}, links={}, licenses=LICENSES)
        return wheels.devel_wheel(output, empty)
    made = RuntimePlan(
        kind=kind,  # type: ignore[arg-type]
        family="gfx942" if kind == "device" else "",
        licenses=LICENSES,
        folder=payload_folder(kind),
        payload=Payload(files={}, aliases={}),
    )
    return wheels.runtime_wheel(output, made, [])
