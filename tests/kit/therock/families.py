"""GPU families: their targets, and the machines that CI builds and tests them on."""

from collections.abc import Mapping, Sequence
from typing import Any

from ci.plan.data import buildable_families, runners
from core.families import CPU, families, gpu_targets
from tests.kit.therock.checkout import TheRock
from tests.kit.therock.comparison import Comparison, Facts, Rule, Values

LISTS = ("gfx94X-dcgpu;gfx110X-all", "gfx1151;gfx115X-all", "igpu-all;dgpu-all")
TIERS = ("presubmit", "postsubmit", "nightly")


def compare_families(therock: TheRock) -> Comparison:
    """Compare the targets of families, and of lists of families."""
    downstream = {name: family.targets for name, family in families().items() if family.targets}
    return Comparison(
        upstream=therock.ask("families", lists=LISTS),
        downstream={**downstream, **{names: gpu_targets(names) for names in LISTS}},
    )


def compare_machines(therock: TheRock) -> Comparison:
    """Compare which machines build and test which family, and when."""
    answer = therock.ask("ci_machines")
    upstream: dict[str, Values] = {}
    for platform, labels_by_kind in answer["builds"].items():
        for kind, labels in labels_by_kind.items():
            upstream[f"{platform} builds, {kind}"] = labels_in(labels)
    for tier in TIERS:
        for rows in answer[tier].values():
            for platform, row in rows.items():
                facts = {"tier": tier, **upstream_machines(row)}
                for key, value in facts.items():
                    upstream[f"{row['family']} on {platform}, {key}"] = value
    return Comparison(upstream=upstream, downstream=our_machines())


def upstream_machines(row: Mapping[str, Any]) -> Facts:
    """Return what a row of upstream's table says of a family on a platform."""
    is_tested_later = row.get("nightly_check_only_for_family") or row.get("submodule_bump_tests_only")
    tests = "nightly" if is_tested_later else "presubmit"
    return {
        "tests": tests if row["test-runs-on"] else "",
        "test_runner": labels_of(row, "test-runs-on"),
        "several_gpus": labels_of(row, "test-runs-on-multi-gpu"),
        "kernels": kernels_in(row.get("test-runs-on-kernel", {})),
        "sandbox": labels_of(row, "test-runs-on-sandbox"),
        "bypass": "yes" if row.get("bypass_tests_for_releases") else "",
        "variants": row["build_variants"],
    }


def labels_of(row: Mapping[str, Any], key: str) -> Sequence[str]:
    """Return the label under a key, and those of the machines that share its work."""
    return [row.get(key) or "", *labels_in(row.get(f"{key}-labels", ()))]


def labels_in(rows: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Return the labels of machines, each of which may have a weight."""
    return [row["label"] for row in rows]


def kernels_in(labels: Mapping[str, str]) -> Sequence[str]:
    """Return kernels with the label of a machine that has each."""
    return [f"{kernel}: {label}" for kernel, label in labels.items()]


def our_machines() -> Facts:
    """Return what our data says of machines, by upstream's keys."""
    data = runners()
    downstream: dict[str, Values] = {}
    for platform, machines in data.machines.items():
        downstream[f"{platform} builds, default"] = machines.build
        downstream[f"{platform} builds, sanitizer"] = machines.sanitizer or ""
    for family, platforms in buildable_families().families.items():
        if family == CPU:
            continue
        for platform, tiers in platforms.items():
            runner = data.find_runner(family, platform)
            facts: dict[str, Values] = {
                "tier": tiers.tier,
                "tests": tiers.tests if runner.test_runner else "",
                "test_runner": [runner.test_runner or "", *runner.more_test_runners],
                "several_gpus": runner.several_gpus or "",
                "kernels": kernels_in(runner.kernels),
                "bypass": "yes" if runner.bypass_tests_for_releases else "",
                "variants": tiers.variants,
            }
            for key, value in facts.items():
                downstream[f"{family} on {platform}, {key}"] = value
    return downstream


RULES = (
    Rule(
        name="targets of families",
        upstream="cmake/therock_amdgpu_targets.cmake",
        downstream="core/families.toml",
        compare=compare_families,
    ),
    Rule(
        name="machines",
        upstream="build_tools/github_actions/amdgpu_family_matrix.py",
        downstream="ci/runners.toml, ci/families.toml",
        compare=compare_machines,
    ),
)
