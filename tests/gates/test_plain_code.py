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
    "kit": ("tests/kit",),
    "gates": ("tests/gates",),
    "front": (
        "noxfile.py",
        "tasks.py",
        "ci/pipeline.py",
        "ci/jobs.py",
        "ci/flow.py",
        "ci/changed_trees.py",
        "ci/job_runner.py",
        "ci/interpreters.py",
        "ci/looks.py",
        "core/cli",
        "core/cell.py",
        "core/modes.py",
        "core/status.py",
    ),
    "front's tests": (
        "tests/unit/test_noxfile.py",
        "tests/unit/test_tasks.py",
        "tests/unit/ci/test_pipeline.py",
        "tests/unit/ci/test_jobs.py",
        "tests/unit/ci/test_flow.py",
        "tests/unit/ci/test_changed_trees.py",
        "tests/unit/ci/test_job_runner.py",
        "tests/unit/ci/test_looks.py",
        "tests/unit/core/cli",
        "tests/unit/core/test_modes.py",
        "tests/unit/core/test_cell.py",
    ),
    # Each part below is measured by itself besides.
    "core": ("core",),
    "core's floor": (
        "core/environment.py",
        "core/errors.py",
        "core/families.py",
        "core/files.py",
        "core/host_path.py",
        "core/http.py",
        "core/http_server.py",
        "core/links.py",
        "core/parallel.py",
        "core/process",
        "core/temporary.py",
        "core/run/__init__.py",
        "core/run/job_files.py",
        "core/run/locations.py",
        "core/run/records.py",
    ),
    "core's floor's tests": (
        "tests/unit/core/run/test_job_files.py",
        "tests/unit/core/run/test_locations.py",
        "tests/unit/core/run/test_outputs.py",
        "tests/unit/core/run/test_records.py",
        "tests/unit/core/run/test_stage.py",
        "tests/unit/core/test_causes.py",
        "tests/unit/core/test_console.py",
        "tests/unit/core/test_data.py",
        "tests/unit/core/test_errors.py",
        "tests/unit/core/test_families.py",
        "tests/unit/core/test_files.py",
        "tests/unit/core/test_host_path.py",
        "tests/unit/core/test_http.py",
        "tests/unit/core/test_http_server.py",
        "tests/unit/core/test_junit.py",
        "tests/unit/core/test_links.py",
        "tests/unit/core/test_parallel.py",
        "tests/unit/core/process",
        "tests/unit/core/test_temporary.py",
    ),
    "plan": (
        "ci/plan",
        "core/run/plan.py",
        "ci/verbs/configure.py",
        "ci/verbs/cells.py",
    ),
    "comparison with TheRock": (
        "tests/upstream/test_therock_rules.py",
        "tests/upstream/test_planted_changes.py",
        "tests/kit/therock",
    ),
    "rocm_packaging": ("rocm_packaging",),
    "rocm_packaging's tests": (
        "tests/unit/rocm_packaging",
        "tests/integration/test_rocm_packages.py",
        "tests/integration/test_rocm_split.py",
        "tests/integration/test_layouts.py",
        "tests/integration/test_device_packages.py",
        "tests/integration/test_find_rocm.py",
    ),
    "plan's tests": (
        "tests/unit/ci/plan",
        "tests/unit/core/run/test_plan.py",
        "tests/unit/ci/verbs/test_configure.py",
        "tests/unit/ci/verbs/test_cells.py",
    ),
    "packages": ("core/packages",),
    "packages' and environments' tests": (
        "tests/unit/core/packages",
        "tests/unit/core/env",
        "tests/integration/test_strangers.py",
        "tests/integration/test_clients.py",
        "tests/integration/test_stores_and_installers.py",
    ),
    "archive, wheel and binaries": (
        "core/archive",
        "core/wheel",
        "core/binaries",
    ),
    "archive's, wheel's and binaries' tests": (
        "tests/unit/core/archive",
        "tests/unit/core/wheel",
        "tests/unit/core/binaries",
        "tests/unit/ci/test_refused_archives.py",
        "tests/integration/test_wheel_forms.py",
    ),
    "components, refs and builds": (
        "pytorch_build/components",
        "pytorch_build/refs",
        "pytorch_build/build",
        "pytorch_build/context.py",
        "pytorch_build/platforms.py",
        "pytorch_build/sdk.py",
        "pytorch_build/verbs/build.py",
    ),
    "components', refs' and builds' tests": (
        "tests/unit/pytorch_build/components",
        "tests/unit/pytorch_build/refs",
        "tests/unit/pytorch_build/build",
        "tests/unit/pytorch_build/test_context.py",
        "tests/unit/pytorch_build/test_platforms.py",
        "tests/unit/pytorch_build/test_sdk.py",
        "tests/unit/pytorch_build/verbs/test_build.py",
        "tests/unit/pytorch_build/verbs/test_build_plan.py",
        "tests/integration/test_compiler_caches.py",
    ),
    "index": ("ci/publish/index", "ci/verbs/index.py"),
    "checks": (
        "pytorch_build/check",
        "pytorch_build/verbs/check_wheels.py",
    ),
    "checks' tests": (
        "tests/unit/pytorch_build/check",
        "tests/unit/pytorch_build/verbs/test_check_wheels.py",
    ),
    "stores": ("core/stores",),
    "stores' tests": (
        "tests/unit/core/stores",
        "tests/integration/test_s3_store.py",
        "tests/integration/test_uploads.py",
    ),
    "uploads and installation": (
        "ci/publish/batches.py",
        "ci/publish/buckets.py",
        "ci/publish/folders.py",
        "ci/publish/kinds.py",
        "ci/publish/local_files.py",
        "ci/publish/runs.py",
        "ci/publish/server",
        "ci/publish/upload_records.py",
        "ci/install",
        "ci/verbs/fetch_artifacts.py",
        "ci/verbs/mirror_deps.py",
        "ci/verbs/setup_venv.py",
        "ci/verbs/stage.py",
        "ci/verbs/upload.py",
    ),
    "tests of upstream": (
        "pytorch_build/test/container_run.py",
        "pytorch_build/test/file_run.py",
        "pytorch_build/test/outcomes.py",
        "pytorch_build/test/plugin.py",
        "pytorch_build/test/reports.py",
        "pytorch_build/test/results.py",
        "pytorch_build/test/shards.py",
        "pytorch_build/test/skip_questions.py",
        "pytorch_build/test/skip_rules.py",
        "pytorch_build/test/target",
        "pytorch_build/test/torch_run.py",
        "pytorch_build/verbs/test_torch.py",
    ),
    "tests of upstream's tests": (
        "tests/unit/pytorch_build/test/target",
        "tests/unit/pytorch_build/test/test_container_run.py",
        "tests/unit/pytorch_build/test/test_file_run.py",
        "tests/unit/pytorch_build/test/test_misbehaving_files.py",
        "tests/unit/pytorch_build/test/test_outcomes.py",
        "tests/unit/pytorch_build/test/test_plugin.py",
        "tests/unit/pytorch_build/test/test_reports.py",
        "tests/unit/pytorch_build/test/test_results.py",
        "tests/unit/pytorch_build/test/test_shards.py",
        "tests/unit/pytorch_build/test/test_skip_questions.py",
        "tests/unit/pytorch_build/test/test_skip_rules.py",
        "tests/unit/pytorch_build/test/test_torch_run.py",
        "tests/unit/pytorch_build/verbs/test_test_torch.py",
    ),
    "smoke tests and test records": (
        "pytorch_build/test/gpus.py",
        "pytorch_build/test/installation.py",
        "pytorch_build/test/record.py",
        "pytorch_build/test/smoke_run.py",
        "pytorch_build/test/summary.py",
        "pytorch_build/test/tested_packages.py",
        "pytorch_build/test/upstream_tests.py",
        "pytorch_build/verbs/checkout.py",
        "pytorch_build/verbs/install_rocm.py",
        "pytorch_build/verbs/resolve.py",
        "pytorch_build/verbs/test_report.py",
        "pytorch_build/verbs/test_smoke.py",
    ),
    "smoke tests' and test records' tests": (
        "pytorch_build/test/smoke",
        "tests/unit/pytorch_build/test/test_gpus.py",
        "tests/unit/pytorch_build/test/test_installation.py",
        "tests/unit/pytorch_build/test/test_record.py",
        "tests/unit/pytorch_build/test/test_smoke.py",
        "tests/unit/pytorch_build/test/test_summary.py",
        "tests/unit/pytorch_build/test/test_tested_packages.py",
        "tests/unit/pytorch_build/test/test_upstream_tests.py",
        "tests/unit/pytorch_build/verbs/test_checkout.py",
        "tests/unit/pytorch_build/verbs/test_install_rocm.py",
        "tests/unit/pytorch_build/verbs/test_resolve.py",
        "tests/unit/pytorch_build/verbs/test_test_report.py",
        "tests/unit/pytorch_build/verbs/test_test_smoke.py",
    ),
    "sources and lock": ("pytorch_build/sources", "pytorch_build/lock"),
    "sources' and lock's tests": (
        "tests/unit/pytorch_build/sources",
        "tests/unit/pytorch_build/lock",
        "tests/integration/test_sources.py",
        "tests/integration/test_two_refs.py",
    ),
    "split, fat and portable wheels": (
        "pytorch_build/standalone",
        "pytorch_build/split",
        "pytorch_build/sample/__init__.py",
        "pytorch_build/verbs/fat_wheel.py",
        "pytorch_build/verbs/repair_wheel.py",
        "pytorch_build/verbs/split_wheel.py",
    ),
    "split, fat and portable wheels' tests": (
        "tests/unit/pytorch_build/standalone",
        "tests/unit/pytorch_build/split",
        "tests/unit/pytorch_build/sample",
        "tests/unit/pytorch_build/verbs/test_fat_wheel.py",
        "tests/integration/test_fat_wheels.py",
        "tests/integration/test_split_wheels.py",
        "tests/integration/test_sixth_component.py",
        "tests/integration/test_release_refs.py",
    ),
    "uploads' and installation's tests": (
        "tests/unit/ci/publish/server",
        "tests/unit/ci/publish/test_buckets.py",
        "tests/unit/ci/publish/test_folders.py",
        "tests/unit/ci/publish/test_interrupted.py",
        "tests/unit/ci/publish/test_local_files.py",
        "tests/unit/ci/publish/test_runs.py",
        "tests/unit/ci/publish/test_s3_uploads.py",
        "tests/unit/ci/install",
        "tests/unit/ci/verbs/test_fetch_artifacts.py",
        "tests/unit/ci/verbs/test_mirror_deps.py",
        "tests/unit/ci/verbs/test_setup_venv.py",
        "tests/unit/ci/verbs/test_upload.py",
    ),
    "promotion and provenance": (
        "ci/promote",
        "ci/provenance",
        "ci/verbs/promote.py",
        "ci/verbs/stage.py",
        "ci/verbs/verify.py",
        "ci/verbs/provenance.py",
    ),
    "promotion's and provenance's tests": (
        "tests/unit/ci/promote",
        "tests/unit/ci/provenance",
        "tests/unit/ci/verbs/test_verify.py",
        "tests/integration/test_promotion.py",
        "tests/integration/test_provenance.py",
    ),
    "cleanup": (
        "ci/cleanup",
        "ci/verbs/clean.py",
        "ci/verbs/retention.py",
    ),
    "cleanup's tests": (
        "tests/unit/ci/cleanup",
        "tests/unit/ci/verbs/test_clean.py",
        "tests/unit/ci/verbs/test_retention.py",
    ),
    "reports": ("ci/report", "ci/verbs/report.py"),
    "bisect and notifications": (
        "ci/bisection",
        "ci/github.py",
        "ci/verbs/bisect.py",
        "ci/verbs/build_image.py",
        "ci/verbs/in_image.py",
        "ci/verbs/lambda_zip.py",
        "ci/verbs/notify.py",
        "ci/verbs/plan_job.py",
    ),
    "docs": (
        "docs/command_tables.py",
        "docs/data_tables.py",
        "docs/generate.py",
        "docs/markdown.py",
        "docs/messages.py",
        "docs/roles.py",
        "docs/screenshots.py",
    ),
    "reports' tests": (
        "tests/unit/ci/report",
        "tests/unit/ci/verbs/test_report.py",
    ),
    "bisect's and notifications' tests": (
        "tests/unit/ci/bisection",
        "tests/unit/ci/test_github.py",
        "tests/unit/ci/verbs/test_build_image.py",
        "tests/unit/ci/verbs/test_in_image.py",
        "tests/unit/ci/verbs/test_lambda_zip.py",
        "tests/unit/ci/verbs/test_notify.py",
        "tests/unit/ci/verbs/test_plan_job.py",
    ),
    "docs' tests": ("tests/unit/docs",),
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
