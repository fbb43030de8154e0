"""The documentation's support tables, generated from the refs data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docs.command_tables import table
from pytorch_build.refs.torch_refs import DISTRIBUTIONS, PLATFORMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytorch_build.refs.torch_refs import FeatureRow, HistoryRow, ProjectSource, RefsFile, TorchRef

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


def support_tables(data: RefsFile, refs_by_platform: Mapping[str, Mapping[str, TorchRef]]) -> str:
    """Write both tables, features and versions, as Markdown."""
    return "\n".join(
        [
            "### Projects and features",
            "",
            *feature_table(data.features),
            "",
            "### PyTorch versions",
            "",
            *version_table(refs_by_platform, data.history),
            "",
        ]
    )


def feature_table(features: Iterable[FeatureRow]) -> list[str]:
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


def version_table(
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
    name = DISTRIBUTIONS[source.project]
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
