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
    test_the_first_gpu_decides
10. Links of the profiler become full copies:
    test_a_library_is_written_once_under_its_soname
11. Links of the development tree follow from the order of its archive:
    test_the_order_of_the_archive_does_not_show
12. `?` in a pattern stands for any length:
    test_excluded_paths
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
    test_split_packages
 - Looking for a GPU unpacks the development tree:
    test_console_scripts_run_the_programs
 - A missing profiler goes unnoticed, files of no package are lost in silence:
    test_the_profiler_is_made_where_there_is_one
    test_the_packages
"""

from __future__ import annotations

import re

from core.cli.options import ROOT

TESTS = ROOT / "tests"
NAMED = re.findall(r"^    (test_\w+)$", __doc__ or "", re.MULTILINE)


def test_every_defect_is_listed() -> None:
    numbers = re.findall(r"^ ?(\d+)\. ", __doc__ or "", re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 16)]
    assert len(NAMED) > 25


def test_every_test_that_is_named_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    defined = {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}
    assert set(NAMED) - defined == set()
