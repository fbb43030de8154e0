"""Parts that have been rewritten in plain code stay so: CONTRIBUTING.md has the rules."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.cli.options import ROOT
from tests.kit import plain_code, source_code
from tests.kit.plain_code import Figures
from tests.kit.source_code import relative

# The folders and files of each part that is finished, tests among them. A part is added when it has been
# rewritten. It is measured as a whole, as figures per 1000 statements say little of a single small file.
FINISHED: dict[str, tuple[str, ...]] = {
    "flows": ("noxfile.py", "tasks.py"),
    "core": ("core",),
    "rocm_packaging": ("rocm_packaging",),
    "pytorch_build": ("pytorch_build",),
    "ci": ("ci",),
    "docs": (
        "docs/command_tables.py",
        "docs/data_tables.py",
        "docs/generate.py",
        "docs/markdown.py",
        "docs/messages.py",
        "docs/mutants.py",
        "docs/roles.py",
        "docs/screenshots.py",
    ),
    "kit": ("tests/kit",),
    "gates": ("tests/gates",),
    "core's tests": ("tests/unit/core",),
    "rocm_packaging's tests": ("tests/unit/rocm_packaging",),
    "pytorch_build's tests": ("tests/unit/pytorch_build", "pytorch_build/test/smoke"),
    "docs' tests": ("tests/unit/docs",),
    "comparison with TheRock": (
        "tests/upstream/test_therock_rules.py",
        "tests/upstream/test_planted_changes.py",
        "tests/kit/therock",
    ),
    "ci's tests": (
        "tests/unit/test_noxfile.py",
        "tests/unit/test_tasks.py",
        "tests/unit/ci/bisection",
        "tests/unit/ci/cleanup",
        "tests/unit/ci/install",
        "tests/unit/ci/plan",
        "tests/unit/ci/promote",
        "tests/unit/ci/provenance",
        "tests/unit/ci/publish/server",
        "tests/unit/ci/publish/test_buckets.py",
        "tests/unit/ci/publish/test_folders.py",
        "tests/unit/ci/publish/test_interrupted.py",
        "tests/unit/ci/publish/test_local_files.py",
        "tests/unit/ci/publish/test_runs.py",
        "tests/unit/ci/publish/test_s3_uploads.py",
        "tests/unit/ci/report",
        "tests/unit/ci/test_changed_trees.py",
        "tests/unit/ci/test_flow.py",
        "tests/unit/ci/test_github.py",
        "tests/unit/ci/test_job_runner.py",
        "tests/unit/ci/test_jobs.py",
        "tests/unit/ci/test_looks.py",
        "tests/unit/ci/test_pipeline.py",
        "tests/unit/ci/test_refused_archives.py",
        "tests/unit/ci/verbs/test_build_image.py",
        "tests/unit/ci/verbs/test_cells.py",
        "tests/unit/ci/verbs/test_clean.py",
        "tests/unit/ci/verbs/test_configure.py",
        "tests/unit/ci/verbs/test_fetch_artifacts.py",
        "tests/unit/ci/verbs/test_in_image.py",
        "tests/unit/ci/verbs/test_lambda_zip.py",
        "tests/unit/ci/verbs/test_mirror_deps.py",
        "tests/unit/ci/verbs/test_notify.py",
        "tests/unit/ci/verbs/test_plan_job.py",
        "tests/unit/ci/verbs/test_report.py",
        "tests/unit/ci/verbs/test_retention.py",
        "tests/unit/ci/verbs/test_setup_venv.py",
        "tests/unit/ci/verbs/test_upload.py",
        "tests/unit/ci/verbs/test_verify.py",
    ),
    "tests of integration": (
        "tests/integration/test_clients.py",
        "tests/integration/test_compiler_caches.py",
        "tests/integration/test_device_packages.py",
        "tests/integration/test_fat_wheels.py",
        "tests/integration/test_find_rocm.py",
        "tests/integration/test_layouts.py",
        "tests/integration/test_promotion.py",
        "tests/integration/test_provenance.py",
        "tests/integration/test_release_refs.py",
        "tests/integration/test_rewriting.py",
        "tests/integration/test_rocm_packages.py",
        "tests/integration/test_rocm_split.py",
        "tests/integration/test_s3_store.py",
        "tests/integration/test_sixth_component.py",
        "tests/integration/test_sources.py",
        "tests/integration/test_split_wheels.py",
        "tests/integration/test_stores_and_installers.py",
        "tests/integration/test_strangers.py",
        "tests/integration/test_two_refs.py",
        "tests/integration/test_uploads.py",
        "tests/integration/test_wheel_forms.py",
    ),
    "reports from the field": ("tests/field",),
    "bench": ("tests/bench",),
    "bench's tests": ("tests/unit/bench",),
    "promises": ("tests/promises",),
    "linters and locks": ("requirements",),
    "upstream's tests": (
        "tests/upstream/conftest.py",
        "tests/upstream/test_released_torch.py",
        "tests/upstream/test_checkout.py",
        "tests/upstream/test_device_code.py",
        "tests/upstream/test_environment.py",
        "tests/upstream/test_hip_torch.py",
        "tests/upstream/test_real_wheels.py",
        "tests/upstream/test_rocm7.py",
        "tests/upstream/test_sample_contract.py",
        "tests/upstream/test_search_paths.py",
        "tests/upstream/test_skip_rules.py",
        "tests/upstream/test_split.py",
        "tests/upstream/test_therock_packages.py",
        "tests/upstream/test_torch_run.py",
        "tests/upstream/test_whole_torch.py",
    ),
}

# Where tests are. Smoke tests run in the environments of users, and are part of the product for that.
FOLDERS_OF_TESTS = ("tests/", "pytorch_build/test/smoke")

MOST_MODULE_LINES = 700
MOST_FUNCTION_LINES = 75
MOST_PARAMETERS = 8
# invoke makes an option of each parameter of a task, and makers of test inputs have one for each fact.
MAY_TAKE_MANY_PARAMETERS = ("tasks.py", "tests/kit/")

# A test says in one expression what is expected.
MOST_NODES_PER_LINE = 3.8
MOST_NODES_PER_LINE_OF_TESTS = 4.5

LIMITS: dict[str, tuple[Callable[[Figures], float], float]] = {
    "placeholder names, % of all": (lambda figures: figures.placeholders, 2),
    "assignments of several values, per 1000 statements": (lambda figures: figures.tuple_assignments, 2),
    "conditional expressions, per 1000 statements": (lambda figures: figures.conditional_expressions, 20),
    "comprehensions, per 1000 statements": (lambda figures: figures.comprehensions, 40),
    "nested comprehensions, per 1000 statements": (lambda figures: figures.nested_comprehensions, 3),
}


def modules_of(path: str) -> list[Path]:
    """Return a file, or the modules in a folder."""
    file_or_folder = ROOT / path
    modules = [file_or_folder] if file_or_folder.is_file() else sorted(file_or_folder.rglob("*.py"))
    assert modules, f"{path} has no modules"
    return modules


def modules_of_part(part: str) -> list[Path]:
    modules: list[Path] = []
    for path in FINISHED[part]:
        modules += modules_of(path)
    return modules


FINISHED_MODULES: list[Path] = []
for finished_part in FINISHED:
    FINISHED_MODULES += modules_of_part(finished_part)


@pytest.mark.parametrize("part", FINISHED)
@pytest.mark.parametrize("figure", LIMITS)
def test_finished_parts_stay_readable(part: str, figure: str) -> None:
    measure, limit = LIMITS[figure]
    modules = modules_of_part(part)
    worst_modules = sorted(modules, key=lambda module: measure(plain_code.measure([module])), reverse=True)

    value = measure(plain_code.measure(modules))

    assert value <= limit, f"{figure}: see {', '.join(map(relative, worst_modules[:5]))}"


@pytest.mark.parametrize("part", FINISHED)
def test_lines_of_finished_parts_say_one_thing(part: str) -> None:
    are_tests = all(path.startswith(FOLDERS_OF_TESTS) for path in FINISHED[part])
    limit = MOST_NODES_PER_LINE_OF_TESTS if are_tests else MOST_NODES_PER_LINE

    assert plain_code.measure(modules_of_part(part)).nodes_per_line <= limit


def test_modules_have_one_subject() -> None:
    for module in FINISHED_MODULES:
        assert len(module.read_text(encoding="utf-8").splitlines()) <= MOST_MODULE_LINES, relative(module)


def test_functions_fit_on_a_screen() -> None:
    assert list(long_functions()) == []


def long_functions() -> Iterator[str]:
    """Yield the functions of the product that do not fit."""
    for module in source_code.product_modules():
        for function in plain_code.functions(module):
            if plain_code.count_lines(function) > MOST_FUNCTION_LINES:
                yield f"{relative(module)}: {function.name}"


def test_functions_take_few_parameters() -> None:
    assert list(crowded_functions()) == []


def crowded_functions() -> Iterator[str]:
    """Yield the functions of finished parts that take too much at once."""
    for module in FINISHED_MODULES:
        if relative(module).startswith(MAY_TAKE_MANY_PARAMETERS):
            continue
        for function in plain_code.functions(module):
            if plain_code.count_parameters(function) > MOST_PARAMETERS:
                yield f"{relative(module)}: {function.name}"
