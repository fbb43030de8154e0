"""What an upload tells: the table, the addresses as job outputs, links in the job's summary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from core import console
from core.families import families
from core.run import job_files
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.run.job_files import JobFiles
    from core.run.outputs import RunOutputs
    from core.run.records import FileRecord
    from core.stores import Store

# a summary is read by people; the page lists them all
_ROWS = 200
_WANTED = ("torch", "rocm")


def table(put: Sequence[FileRecord]) -> None:
    """Print the wheels of an upload."""
    console.table(
        ("file", "size", "sha256"), [(one.name, console.size(one.size), one.sha256[:12]) for one in put]
    )


def has_index(store: Store, outputs: RunOutputs, artifact_group: str) -> bool:
    """Say whether ``simple/`` is an address: in a folder, and in buckets that hold pages of folders."""
    return "://" not in store.url or store.find(f"{outputs.python_index_prefix(artifact_group)}/") is not None


def set_outputs(files: JobFiles, outputs: RunOutputs, groups: Sequence[str], *, index: bool) -> None:
    """Give later steps the addresses of what was uploaded."""
    told = {"package_find_links_url": {group: outputs.python_find_links_url(group) for group in groups}}
    if index:
        told["package_index_url"] = {group: outputs.python_index_url(group) for group in groups}
    for name, urls in told.items():
        files.set_output(name, urls[groups[0]] if len(groups) == 1 else json.dumps(urls))


def summarize(
    outputs: RunOutputs, artifact_group: str, put: Sequence[FileRecord], *, index: bool = True
) -> None:
    """Show the wheels of a group in the job's summary, each with its link."""
    page = outputs.python_find_links_url(artifact_group)
    rows = [
        (
            job_files.link(one.name, outputs.url_of(one.key)),
            job_files.text(one.version),
            console.size(one.size),
            f"`{one.sha256[:12]}`",
        )
        for one in put[:_ROWS]
    ]
    more = [f"and {len(put) - _ROWS} more"] if len(put) > _ROWS else []
    title = job_files.text(f"Wheels of run {outputs.run_id}, {artifact_group}")
    named = {"page for --find-links": page}
    if index:
        named["index"] = outputs.python_index_url(artifact_group)
    links = ", ".join(job_files.link(text, url) for text, url in named.items())
    install = f"pip install '{_first(put)}' --find-links '{page}'"
    lines = [f"### {title}", "", links, "", "```", install, "```", ""]
    columns = ("wheel", "version", "size", "sha256")
    console.summary("\n".join([*lines, job_files.table(columns, rows), "", *more]))


def _first(put: Sequence[FileRecord]) -> str:
    """Pin what most people install: unpinned, an installer takes the highest version it finds anywhere.

    Split packages come with the extras of all targets, as without one the first kernel fails.
    """
    names = [one.distribution for one in put]
    chosen = next((put[names.index(name)] for name in _WANTED if name in names), put[0])
    kind = "rocm-sdk-device-" if chosen.distribution == "rocm" else f"amd-{chosen.distribution}-device-"
    held = sorted({device_target(name) for name in names if name.startswith(kind)} & families().keys())
    libraries = ["libraries"] if chosen.distribution == "rocm" and held else []
    extras = ",".join([*libraries, *(f"device-{gpu}" for gpu in held)])
    return f"{chosen.distribution}{f'[{extras}]' if extras else ''}=={chosen.version}"


def done(store: Store, prefix: str, *, sent: int, same: int, dry_run: bool) -> None:
    """Print what an upload ended with."""
    where = f"{store.url}/{prefix}"
    if not sent:
        console.done(f"upload: unchanged, {same} files in {where}")
        return
    verb = "would be put" if dry_run else "are"
    kept = f" ({same} of them were)" if same else ""
    console.done(f"upload: {sent + same} files {verb} in {where}{kept}")
