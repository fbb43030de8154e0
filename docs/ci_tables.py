"""CI's data as Markdown: labels, families and their machines, the inputs of a dispatch, outputs of a plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

from ci.plan import data, inputs
from core.run import plan as plans
from core.run.plan import PLATFORMS
from docs.command_tables import table

if TYPE_CHECKING:
    from ci.plan.data import Data
    from core.data import Model


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
            f"test:{name}": f"of the tests `{one.session}`"
            + (f", configuration `{one.config}`" if one.config else ", in full")
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
    """Write the outputs of `configure`, `find_rocm` and `resolve`."""
    matrices = " ".join(f"`{{platform}}_{stage}_matrix`" for stage in plans.STAGES)
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
            "`rocm_package_index_url`",
            "the index that all jobs with ROCm from an index share; empty where there is none",
        ),
        (
            "`rocm_package_version`",
            "the version of ROCm's packages: those of the run, or of the index that `find_rocm` chose",
        ),
        ("`{platform}_variants`", f"a list of families: {_fields(plans.Variant, 'platform')}"),
        ("`{platform}_test_labels`", "a list of labels, such as `test:rocm`"),
        (matrices, "a list of jobs: what a workflow passes on of each, and `rocm` where the job needs it"),
        (
            "`{platform}_cells`",
            "an object: artifact group to stage to the same jobs",
        ),
        ("`{platform}_promote_matrix`", "a list of what is to be promoted: a torch version of a family"),
        (
            "`{platform}_source_locks` (of `resolve` alone)",
            "an object: torch ref to what `SOURCE_LOCK` takes",
        ),
    ]
    named = f"`{{platform}}` is {' or '.join(f'`{one}`' for one in PLATFORMS)}."
    return "\n".join([*table(("output", "JSON"), rows), "", named])


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def plan_schema() -> str:
    """Write the JSON schema of plans."""
    return json.dumps({"$schema": _DRAFT, **plans.Plan.model_json_schema()}, indent=2) + "\n"


def _fields(model: type[Model], *without: str) -> str:
    return " ".join(f"`{name}`" for name in model.model_fields if name not in without)
