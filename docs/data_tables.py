"""The project's data as Markdown: what is supported; CI's labels, machines and inputs; outputs of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, get_args

from ci.plan import data, inputs
from core.run import PLATFORMS
from core.run import plan as plans
from docs.command_tables import table
from pytorch_build.components import COMPONENTS
from pytorch_build.refs import torch_refs as refs

if TYPE_CHECKING:
    from ci.plan.data import Data
    from core.data import Model
    from pytorch_build.refs.torch_refs import FeatureRow, HistoryRow, ProjectSource, TorchRef

PIN_FILES: Mapping[str, str] = {
    "related_commits": "related_commits",
    "triton": ".ci/docker/ci_commit_pins/triton.txt",
}
_WORDS = {
    "supported": "✅ Supported",
    "unsupported": "❌ Not supported",
    "previously-built": "Previously built",
    "off": "Off by default",
}
_TITLES = {"linux": "Linux", "windows": "Windows"}


def support_tables() -> str:
    """Write both tables of the refs data, features and versions, without the sample."""
    data = refs.embedded()
    by_platform: dict[str, Mapping[str, TorchRef]] = {
        platform: refs.load_refs(platform=platform) for platform in PLATFORMS
    }
    parts = ("### Projects and features", "", *_feature_table(data.features), "")
    return "\n".join((*parts, "### PyTorch versions", "", *_version_table(by_platform, data.history), ""))


def _feature_table(features: Iterable[FeatureRow]) -> list[str]:
    """Write one row a feature, with a link to the issue that explains it."""
    rows = [
        (row.name, *(_feature_cell(row, getattr(row, platform)) for platform in PLATFORMS))
        for row in features
    ]
    return table(("Project or feature", *_TITLES.values()), rows)


def _feature_cell(row: FeatureRow, status: str) -> str:
    text = _WORDS[status]
    if status == "supported":
        return text
    if row.issue:
        text += f" (see issue [#{row.issue.rpartition('/')[2]}]({row.issue}))"
    return f"{text}: {row.note}" if row.note else text


def _version_table(
    refs_by_platform: Mapping[str, Mapping[str, TorchRef]], history: Iterable[HistoryRow]
) -> list[str]:
    """Write one row a torch ref, in the order of the data, each followed by what it replaced."""
    past = list(history)
    rows = []
    for name, ref in refs_by_platform[PLATFORMS[0]].items():
        if not ref.listed:
            continue
        cells = (_version_cell(refs_by_platform[platform][name], platform) for platform in PLATFORMS)
        rows.append((ref.title, f"`{name}`", ", ".join(ref.pythons), *cells))
        rows += [
            (row.title, "", "", *(_WORDS[getattr(row, platform)] for platform in PLATFORMS))
            for row in past
            if row.after == name
        ]
    return table(("PyTorch version", "Torch ref", "Python", *_TITLES.values()), rows)


def _version_cell(ref: TorchRef, platform: str) -> str:
    if ref.platforms[platform] != "supported":
        return _WORDS[ref.platforms[platform]]
    lines = [_project_text(ref.projects[name], ref) for name in ref.components]
    return "<br>".join([f"✅ Using {ref.source}", *lines])


def _project_text(source: ProjectSource, ref: TorchRef) -> str:
    name = COMPONENTS[source.project].distribution
    if source.prebuilt:
        return f"{name}: `{source.prebuilt}`"
    address = source.origin.removesuffix(".git")
    repository = "/".join(address.rsplit("/", 2)[-2:])
    if source.pin:
        torch = ref.projects["torch"]
        pin = PIN_FILES[source.pin]
        page = f"{torch.origin.removesuffix('.git')}/blob/{torch.ref}/{pin}"
        text = f"{name}: [{repository}]({address}) at [`{pin.rpartition('/')[2]}`]({page})"
        return f"{text}, else `{source.ref}`" if source.ref else text
    return f"{name}: [{repository} `{source.ref}`]({address}/tree/{source.ref})"


def test_table() -> str:
    """Write the kinds of tests, as `triggers.toml` has them."""
    rows = [
        (
            f"`{name}`",
            f"`{one.session}`" + (f", `{one.config}`" if one.config else ""),
            ", ".join(f"`{kind}`" for kind in one.types) or "every one",
            ", ".join(one.pythons) or "every one",
            str(one.shards),
            " and ".join(one.platforms) or "every one",
        )
        for name, one in data.load().triggers.tests.items()
    ]
    return "\n".join(table(("test", "session", "of test types", "Pythons", "jobs", "platforms"), rows))


def label_table() -> str:
    """Write every label that CI knows, with what it asks for."""
    known = data.load()
    meanings = {
        inputs.BUILD_PYTORCH: "build and test PyTorch too",
        inputs.SKIP: "build nothing, whatever else is asked for",
        inputs.ALL_FAMILIES: "every family that the nightly schedule builds",
        **{one.label: f"the build variant `{name}` too" for name, one in known.families.variants.items()},
        **{
            f"test:{name}": f"`{one.session}` too" + (f", configuration `{one.config}`" if one.config else "")
            for name, one in known.triggers.tests.items()
        },
        **{f"test_filter:{name}": f"test type `{name}`" for name in get_args(data.TestType)},
        **{
            f"test_runner:{name}": f"tests on machines with the kernel `{name}` alone"
            for name in inputs.kernels(known)
        },
    }
    rows = [(f"`{label}`", meanings[label]) for label in inputs.known_labels(known) if label in meanings]
    rows.append(
        ("`gfx…`", "this GPU family too: `gfx1151`, `gfx94x`, `gfx942`, `gfx94X-dcgpu`, `gfx94X-linux`")
    )
    return "\n".join(table(("label", "asks for"), rows))


def family_table() -> str:
    """Write the families that CI builds: from when on, and who has the GPU."""
    known = data.load()
    rows = [
        (f"`{name}`", platform, on.tier, on.pytorch, _machine(known, name, platform), ", ".join(on.variants))
        for name, platforms in known.families.families.items()
        for platform, on in platforms.items()
    ]
    columns = ("GPU family", "platform", "built from", "PyTorch from", "tested on", "variants")
    return "\n".join(table(columns, rows))


def _machine(known: Data, name: str, platform: str) -> str:
    row = known.runners.of(name, platform)
    label = f"`{row.test_runner}`" if row.test_runner else "nobody has it"
    return f"{label}, released untested" if row.bypass_tests_for_releases and not row.test_runner else label


def input_table() -> str:
    """Write the inputs of a dispatch."""
    rows = [(f"`{name}`", one.about) for name, one in inputs.table().inputs.items()]
    return "\n".join(table(("input", "what it is"), rows))


def output_table() -> str:
    """Write the outputs of `configure` and `resolve`."""
    stages = " ".join(f"`{stage}`" for stage in plans.STAGES)
    rows = [
        (
            "`enable_build_jobs` `build_pytorch` `trusted` `upload` `promote`",
            "`true` or `false`",
        ),
        ("`test_type` `release_type` `upload_reason` `plan_digest`", "a word, or a sentence"),
        (
            "`store` `external_repo` `aws_role` `aws_region`",
            "where outputs go and as whom; empty where nothing is uploaded",
        ),
        (
            "`{platform}_groups`",
            f"a list of artifact groups: `artifact_group`, and {stages}, each a list of jobs",
        ),
        ("`{platform}_stages`", "the stages that have jobs, with spaces between"),
        ("`{platform}_promote_matrix`", "a list of what is to be promoted: a torch version of a family"),
    ]
    named = f"`{{platform}}` is {' or '.join(f'`{one}`' for one in PLATFORMS)}."
    return "\n".join([*table(("output", "JSON"), rows), "", named])


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> str:
    """Write the JSON schema of plans."""
    return json.dumps({"$schema": _DRAFT, **plans.Plan.model_json_schema()}, indent=2) + "\n"


def _fields(model: type[Model], *without: str) -> str:
    return " ".join(f"`{name}`" for name in model.model_fields if name not in without)
