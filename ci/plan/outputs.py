"""A plan as the outputs of a job: JSON where it is more than a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from core.run.plan import PLATFORMS, matrices, refuse_outputs, views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.run.plan import Plan


def outputs(plan: Plan) -> Mapping[str, str]:
    """Write a plan's outputs: lists, objects, booleans as JSON, words as they are."""
    values: dict[str, object] = {
        "enable_build_jobs": plan.enable_build_jobs.value,
        "build_pytorch": plan.build_pytorch.value,
        "trusted": plan.trusted.value,
        "upload": plan.upload.value,
        "upload_reason": plan.upload.reason,
        "promote": plan.promote.value,
        "release_type": plan.release_type,
        "test_type": plan.test_type,
        "store": plan.store.store,
        "external_repo": plan.store.external_repo,
        "aws_role": plan.store.role,
        "aws_region": plan.store.region,
        "rocm_package_version": plan.rocm.version,
        "plan_digest": plan.digest(),
    }
    for platform in PLATFORMS:
        entries = [one for one in plan.variants if one.platform == platform]
        values[f"{platform}_variants"] = [
            one.model_dump(mode="json", exclude={"platform"}) for one in entries
        ]
        values[f"{platform}_test_labels"] = list(plan.test_labels.get(platform, ()))
    values |= matrices(plan)
    values |= views(plan)
    written = {name: value if isinstance(value, str) else compact(value) for name, value in values.items()}
    return refuse_outputs(written)


def compact(value: object) -> str:
    """Write JSON on one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
