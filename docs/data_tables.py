"""The project's data as Markdown: what is supported; CI's labels, machines and inputs; outputs of a plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

from ci.plan import data, inputs
from core.run import PLATFORMS
from core.run import plan as plans
from docs.markdown import code, codes, table, table_text
from pytorch_build.components import COMPONENTS
from pytorch_build.refs import torch_refs as refs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ci.plan.data import Data
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
_TITLES: Mapping[str, str] = {"linux": "Linux", "windows": "Windows"}
_ALL = "every one"


# --- What is supported


def support_tables() -> str:
    """Write both tables of the refs data, features and versions, without the sample."""
    refs_data = refs.embedded()
    refs_by_platform = {platform: refs.load_refs(platform=platform) for platform in PLATFORMS}
    lines = ["### Projects and features", ""]
    lines += _feature_table(refs_data.features)
    lines += ["", "### PyTorch versions", ""]
    lines += _version_table(refs_by_platform, list(refs_data.history))
    lines.append("")
    return "\n".join(lines)


def _feature_table(features: Iterable[FeatureRow]) -> Sequence[str]:
    """Write one row a feature, with a link to the issue that explains it."""
    rows: list[Sequence[str]] = []
    for feature in features:
        cells = [_feature_cell(feature, getattr(feature, platform)) for platform in PLATFORMS]
        rows.append((feature.name, *cells))
    return table(("Project or feature", *_TITLES.values()), rows)


def _feature_cell(feature: FeatureRow, state: str) -> str:
    text = _WORDS_OF_STATES[state]
    if state == "supported":
        return text
    if feature.issue:
        _, _, number = feature.issue.rpartition("/")
        text = f"{text} (see issue [#{number}]({feature.issue}))"
    if feature.note:
        text = f"{text}: {feature.note}"
    return text


def _version_table(
    refs_by_platform: Mapping[str, Mapping[str, TorchRef]],
    history: Sequence[HistoryRow],
) -> Sequence[str]:
    """Write one row a torch ref, in the order of the data, each followed by what it replaced."""
    rows: list[Sequence[str]] = []
    for name, ref in refs_by_platform[PLATFORMS[0]].items():
        if not ref.listed:
            continue
        cells = [_version_cell(refs_by_platform[platform][name], platform) for platform in PLATFORMS]
        rows.append((ref.title, code(name), ", ".join(ref.pythons), *cells))
        rows += _rows_of_history(history, name)
    return table(("PyTorch version", "Torch ref", "Python", *_TITLES.values()), rows)


def _rows_of_history(history: Sequence[HistoryRow], ref_name: str) -> Iterator[Sequence[str]]:
    """Yield what a torch ref has replaced."""
    for row in history:
        if row.after == ref_name:
            cells = [_WORDS_OF_STATES[getattr(row, platform)] for platform in PLATFORMS]
            yield (row.title, "", "", *cells)


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
        return f"{name}: {code(source.prebuilt)}"

    address = source.origin.removesuffix(".git")
    owner, repository_name = address.rsplit("/", 2)[-2:]
    repository = f"{owner}/{repository_name}"
    if not source.pin:
        return f"{name}: [{repository} {code(source.ref)}]({address}/tree/{source.ref})"

    torch = ref.projects["torch"]
    pin_file = PIN_FILES[source.pin]
    _, _, file_name = pin_file.rpartition("/")
    page = f"{torch.origin.removesuffix('.git')}/blob/{torch.ref}/{pin_file}"
    text = f"{name}: [{repository}]({address}) at [{code(file_name)}]({page})"
    if source.ref:
        text = f"{text}, else {code(source.ref)}"
    return text


# --- CI


def test_table() -> str:
    """Write the kinds of tests, as `triggers.toml` has them."""
    rows: list[Sequence[str]] = []
    for name, test in data.load().triggers.tests.items():
        row = (
            code(name),
            _session_and_config(test.session, test.config),
            codes(test.types) or _ALL,
            ", ".join(test.pythons) or _ALL,
            str(test.shards),
            " and ".join(test.platforms) or _ALL,
        )
        rows.append(row)
    columns = ("test", "session", "of test types", "Pythons", "jobs", "platforms")
    return table_text(columns, rows)


def _session_and_config(session: str, config: str | None) -> str:
    return codes(name for name in (session, config) if name)


def label_table() -> str:
    """Write every label that CI knows, with what it asks for."""
    ci_data = data.load()
    meanings = _meanings_of_labels(ci_data)
    rows: list[tuple[str, str]] = []
    for label in inputs.known_labels(ci_data):
        if label in meanings:
            rows.append((code(label), meanings[label]))
    examples = codes(("gfx1151", "gfx94x", "gfx942", "gfx94X-dcgpu", "gfx94X-linux"))
    rows.append((code("gfx…"), f"this GPU family too: {examples}"))
    return table_text(("label", "asks for"), rows)


def _meanings_of_labels(ci_data: Data) -> Mapping[str, str]:
    meanings: dict[str, str] = {
        inputs.BUILD_PYTORCH: "build and test PyTorch too",
        inputs.SKIP: "build nothing, whatever else is asked for",
        inputs.ALL_FAMILIES: "every family that the nightly schedule builds",
    }
    for name, variant in ci_data.families.variants.items():
        if variant.label is not None:
            meanings[variant.label] = f"the build variant {code(name)} too"
    for name, test in ci_data.triggers.tests.items():
        meaning = f"{code(test.session)} too"
        if test.config:
            meaning = f"{meaning}, configuration {code(test.config)}"
        meanings[f"test:{name}"] = meaning
    for name in get_args(data.TestType):
        meanings[f"test_filter:{name}"] = f"test type {code(name)}"
    for name in inputs.kernels(ci_data):
        meanings[f"test_runner:{name}"] = f"tests on machines with the kernel {code(name)} alone"
    return meanings


def family_table() -> str:
    """Write the families that CI builds: from when on, and who has the GPU."""
    ci_data = data.load()
    rows: list[Sequence[str]] = []
    for name, platforms in ci_data.families.families.items():
        for platform, tiers in platforms.items():
            row = (
                code(name),
                platform,
                tiers.tier,
                tiers.pytorch,
                _machine(ci_data, name, platform),
                ", ".join(tiers.variants),
            )
            rows.append(row)
    columns = ("GPU family", "platform", "built from", "PyTorch from", "tested on", "variants")
    return table_text(columns, rows)


def _machine(ci_data: Data, family: str, platform: str) -> str:
    """Return the label of the machines that test a family."""
    machines = ci_data.runners.of(family, platform)
    if machines.test_runner:
        return code(machines.test_runner)
    if machines.bypass_tests_for_releases:
        return "nobody has it, released untested"
    return "nobody has it"


def input_table() -> str:
    """Write the inputs of a dispatch."""
    rows: list[tuple[str, str]] = []
    for name, dispatch_input in inputs.table().inputs.items():
        rows.append((code(name), dispatch_input.about))
    return table_text(("input", "what it is"), rows)


def output_table() -> str:
    """Write the outputs of `configure` and `resolve`."""
    switches = ("enable_build_jobs", "build_pytorch", "trusted", "upload", "promote")
    words = ("test_type", "release_type", "upload_reason", "plan_digest")
    places = ("store", "external_repo", "aws_role", "aws_region")
    stages = codes(plans.STAGES, " ")
    rows = [
        (codes(switches, " "), "`true` or `false`"),
        (codes(words, " "), "a word, or a sentence"),
        (codes(places, " "), "where outputs go and as whom; empty where nothing is uploaded"),
        (
            "`{platform}_groups`",
            f"a list of artifact groups: `artifact_group`, and {stages}, each a list of jobs",
        ),
        ("`{platform}_stages`", "the stages that have jobs, with spaces between"),
        ("`{platform}_promote_matrix`", "a list of what is to be promoted: a torch version of a family"),
    ]
    platforms = codes(PLATFORMS, " or ")
    lines = table(("output", "JSON"), rows)
    lines += ["", f"`{{platform}}` is {platforms}."]
    return "\n".join(lines)


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> str:
    """Write the JSON schema of plans."""
    schema = {"$schema": _DRAFT, **plans.Plan.model_json_schema()}
    text = json.dumps(schema, indent=2)
    return f"{text}\n"
