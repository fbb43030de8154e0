"""Skip rules on real upstream test files (--sources DIR --torch PYTHON)."""

import datetime as dt
from pathlib import Path

import pytest

from core import process
from pytorch_build.test import plugin, skip_rules
from pytorch_build.test.skip_rules import TestedTorch

CPU = TestedTorch(gpu_targets=(), platform="linux", python="3.11.7", torch="2.13.0+cpu")
RULES = Path(__file__).with_name("texts").joinpath("skip-rules.toml").read_text()
FILES = ("test_type_info.py", "test_unary_ufuncs.py")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[plugin.AppliedRule, ...]:
    """Return the rules for these files."""
    file = tmp_path_factory.mktemp("rules") / "mine.toml"
    file.write_text(RULES)
    return skip_rules.apply_rules(skip_rules.load_rules(folder=file), CPU, dt.date(2026, 11, 21))


@pytest.fixture(scope="module")
def collected(
    torch_sources: Path,
    torch_python: Path,
    rules: tuple[plugin.AppliedRule, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> plugin.EventLog:
    """Return what pytest collects with these rules."""
    folder = tmp_path_factory.mktemp("collected")
    settings = plugin.PluginSettings(root=str(torch_sources), events=str(folder), rules=rules)
    command = [str(torch_python), "-m", "pytest", "-p", "no:cacheprovider", "-q", "--collect-only"]
    command += plugin.write_settings(folder / "settings.json", settings)
    environment = process.inherited(PYTHONPATH=str(plugin.TARGET), PYTEST_ADDOPTS=None)

    process.capture([*command, *FILES], cwd=torch_sources / "test", env=environment, check=False)

    (events,) = plugin.read_event_logs(folder)
    return events


def test_a_pattern_takes_just_the_tests_that_it_means(collected: plugin.EventLog) -> None:
    prefix = "test/test_unary_ufuncs.py::TestUnaryUfuncsCPU::test_reference_numerics_"
    infix = "_special_airy_ai_cpu_"
    tests_of_airy = {test for test in collected.existing if test.startswith(prefix) and infix in test}

    assert len(collected.existing) > 10_000
    assert set(collected.rules["mine.airy"]) == tests_of_airy
    assert 5 < len(tests_of_airy) < 100


def test_every_real_id_is_a_pattern_for_itself(collected: plugin.EventLog) -> None:
    for test in sorted(collected.existing)[::50]:
        assert plugin.matches(test, test)


def test_a_rule_whose_tests_are_gone_takes_none(collected: plugin.EventLog) -> None:
    assert [name for name, tests in collected.rules.items() if not tests] == ["mine.gone"]


def test_the_projects_rules_name_files_that_there_are(torch_sources: Path) -> None:
    """A file that upstream renamed takes its rules along, unseen."""
    paths = list((torch_sources / "test").rglob("*.py"))
    files = [path.relative_to(torch_sources).as_posix() for path in paths]
    assert files

    tests_without_file: set[str] = set()
    for rule in skip_rules.load_rules():
        for test in rule.table.tests:
            pattern = test.partition("::")[0]
            if pattern.endswith(".py") and not any(plugin.matches(pattern, file) for file in files):
                tests_without_file.add(test)

    assert tests_without_file <= {
        # since torch 2.12
        "test/inductor/test_control_flow.py::ScanTests::test_cond_in_scan*",
    }
