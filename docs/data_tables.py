"""The project's data as Markdown: what is supported; CI's labels, machines and inputs; outputs of a plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

from ci.plan import data, inputs
from core.run import PLATFORMS
from core.run import plan as plans
from docs.markdown import Table, code, codes
from pytorch_build.components import COMPONENTS
from pytorch_build.refs import torch_refs as refs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ci.plan.data import PlanData
    from core.run import Platform
    from pytorch_build.refs.torch_refs import FeatureRow, HistoryRow, ProjectSource, TorchRef

PIN_FILES: Mapping[str, str] = {
    "related_commits": "related_commits",
    "triton": ".ci/docker/ci_commit_pins/triton.txt",
}
_WORDS_OF_STATES: Mapping[str, str] = {
    "supported": "✅ Supported",
    "unsupported": "❌ Not supported",
    "previously-built": "Previously built",
    "off": "Off by default",
}
_TITLES: Mapping[str, str] = {
    "linux": "Linux",
    "windows": "Windows",
}
_ALL = "every one"


# --- What is supported


def support_tables() -> str:
    """Write both tables of the refs data, features and versions, without the sample."""
    refs_data = refs.embedded_refs_file()
    refs_by_platform = {platform: refs.load_refs(platform=platform) for platform in PLATFORMS}
    lines = ["### Projects and features", ""]
    lines += _feature_table(refs_data.features)
    lines += ["", "### PyTorch versions", ""]
    lines += _version_table(refs_by_platform, list(refs_data.history))
    lines.append("")
    return "\n".join(lines)


def _feature_table(features: Iterable[FeatureRow]) -> Sequence[str]:
    """Write one row a feature, with a link to the issue that explains it."""
    table = Table("Project or feature", *_TITLES.values())
    for feature in features:
        cells = [_feature_cell(feature, platform) for platform in PLATFORMS]
        table.add(feature.name, *cells)
    return table.lines


def _feature_cell(feature: FeatureRow, platform: str) -> str:
    state = getattr(feature, platform)
    text = _WORDS_OF_STATES[state]
    if state == "supported":
        return text
    if feature.issue:
        _, _, number = feature.issue.rpartition("/")
        link = f"[#{number}]({feature.issue})"
        text = f"{text} (see issue {link})"
    if feature.note:
        text = f"{text}: {feature.note}"
    return text


def _version_table(
    refs_by_platform: Mapping[Platform, Mapping[str, TorchRef]],
    history: Sequence[HistoryRow],
) -> Sequence[str]:
    """Write one row a torch ref, in the order of the data, each followed by what it replaced."""
    table = Table(
        "PyTorch version",
        "Torch ref",
        "Python",
        *_TITLES.values(),
    )
    refs_of_first_platform = refs_by_platform[PLATFORMS[0]]
    for name, ref in refs_of_first_platform.items():
        if not ref.listed:
            continue
        cells: list[str] = []
        for platform, refs_of_platform in refs_by_platform.items():
            cells.append(_version_cell(refs_of_platform[name], platform))
        pythons = ", ".join(ref.pythons)
        table.add(
            ref.title,
            code(name),
            pythons,
            *cells,
        )

        for row in history:
            if row.after == name:
                states = [_WORDS_OF_STATES[getattr(row, platform)] for platform in PLATFORMS]
                table.add(
                    row.title,
                    "",
                    "",
                    *states,
                )
    return table.lines


def _version_cell(ref: TorchRef, platform: str) -> str:
    state = ref.platforms[platform]
    if state != "supported":
        return _WORDS_OF_STATES[state]
    lines = [f"✅ Using {ref.source}"]
    lines += [_project_text(ref.projects[name], ref) for name in ref.components]
    return "<br>".join(lines)


def _project_text(source: ProjectSource, ref: TorchRef) -> str:
    name = COMPONENTS[source.project].distribution
    if source.prebuilt:
        return f"{name}: `{source.prebuilt}`"

    address = source.origin.removesuffix(".git")
    _, owner, repository_name = address.rsplit("/", 2)
    repository = f"{owner}/{repository_name}"
    if not source.pin:
        link = f"[{repository} `{source.ref}`]({address}/tree/{source.ref})"
        return f"{name}: {link}"

    torch = ref.projects["torch"]
    torch_address = torch.origin.removesuffix(".git")
    pin_file = PIN_FILES[source.pin]
    _, _, file_name = pin_file.rpartition("/")
    pin_link = f"[`{file_name}`]({torch_address}/blob/{torch.ref}/{pin_file})"
    text = f"{name}: [{repository}]({address}) at {pin_link}"
    if source.ref:
        text = f"{text}, else `{source.ref}`"
    return text


# --- CI


def test_table() -> str:
    """Write the kinds of tests, as `triggers.toml` has them."""
    table = Table(
        "test",
        "session",
        "of test types",
        "Pythons",
        "jobs",
        "platforms",
    )
    tests = data.load().triggers.tests
    for name, test in tests.items():
        session_and_config = filter(None, (test.session, test.config))
        table.add(
            code(name),
            codes(session_and_config),
            codes(test.types) or _ALL,
            ", ".join(test.pythons) or _ALL,
            str(test.shards),
            " and ".join(test.platforms) or _ALL,
        )
    return str(table)


def label_table() -> str:
    """Write every label that CI knows, with what it asks for."""
    ci_data = data.load()
    meanings = _meanings_of_labels(ci_data)
    table = Table("label", "asks for")
    for label in inputs.known_labels(ci_data):
        if label in meanings:
            table.add(code(label), meanings[label])
    table.add(
        "`gfx…`",
        "this GPU family too: `gfx1151`, `gfx94x`, `gfx942`, `gfx94X-dcgpu`, `gfx94X-linux`",
    )
    return str(table)


def _meanings_of_labels(ci_data: PlanData) -> Mapping[str, str]:
    meanings: dict[str, str] = {
        inputs.BUILD_PYTORCH: "build and test PyTorch too",
        inputs.SKIP: "build nothing, whatever else is asked for",
        inputs.ALL_FAMILIES: "every family that the nightly schedule builds",
    }
    for name, variant in ci_data.families.variants.items():
        if variant.label is not None:
            meanings[variant.label] = f"the build variant `{name}` too"
    for name, test in ci_data.triggers.tests.items():
        meaning = f"`{test.session}` too"
        if test.config:
            meaning = f"{meaning}, configuration `{test.config}`"
        meanings[f"test:{name}"] = meaning
    for name in get_args(data.TestType):
        meanings[f"test_filter:{name}"] = f"test type `{name}`"
    for name in inputs.kernels(ci_data):
        meanings[f"test_runner:{name}"] = f"tests on machines with the kernel `{name}` alone"
    return meanings


def family_table() -> str:
    """Write the families that CI builds: from when on, and who has the GPU."""
    ci_data = data.load()
    table = Table(
        "GPU family",
        "platform",
        "built from",
        "PyTorch from",
        "tested on",
        "variants",
    )
    for name, platforms in ci_data.families.families.items():
        for platform, tiers in platforms.items():
            table.add(
                code(name),
                platform,
                tiers.tier,
                tiers.pytorch,
                _machine(
                    ci_data,
                    name,
                    platform,
                ),
                ", ".join(tiers.variants),
            )
    return str(table)


def _machine(
    ci_data: PlanData,
    family: str,
    platform: str,
) -> str:
    """Return the label of the machines that test a family."""
    machines = ci_data.runners.find_runner(family, platform)
    if machines.test_runner:
        return code(machines.test_runner)
    if machines.bypass_tests_for_releases:
        return "nobody has it, released untested"
    return "nobody has it"


def input_table() -> str:
    """Write the inputs of a dispatch."""
    table = Table("input", "what it is")
    dispatch_inputs = inputs.table().inputs
    for name, dispatch_input in dispatch_inputs.items():
        table.add(code(name), dispatch_input.about)
    return str(table)


def output_table() -> str:
    """Write the outputs of `configure` and `resolve`."""
    stages = codes(plans.STAGES, " ")
    platforms = codes(PLATFORMS, " or ")
    table = Table("output", "JSON")
    table.add(
        "`enable_build_jobs` `build_pytorch` `trusted` `upload` `promote`",
        "`true` or `false`",
    )
    table.add(
        "`test_type` `release_type` `upload_reason` `plan_digest`",
        "a word, or a sentence",
    )
    table.add(
        "`store` `external_repo` `aws_role` `aws_region`",
        "where outputs go and as whom; empty where nothing is uploaded",
    )
    table.add(
        "`{platform}_groups`",
        f"a list of artifact groups: `artifact_group`, and {stages}, each a list of jobs",
    )
    table.add(
        "`{platform}_stages`",
        "the stages that have jobs, with spaces between",
    )
    table.add(
        "`{platform}_promote_matrix`",
        "a list of what is to be promoted: a torch version of a family",
    )
    return f"{table}\n\n`{{platform}}` is {platforms}."


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> str:
    """Write the JSON schema of plans."""
    schema = {"$schema": _DRAFT, **plans.Plan.model_json_schema()}
    text = json.dumps(schema, indent=2)
    return f"{text}\n"
