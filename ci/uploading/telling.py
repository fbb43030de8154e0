"""What an upload tells: the table, the addresses as job outputs, links in the job's summary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from core import console, job_files
from core.families import families
from rocm_packaging.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.job_files import JobFiles
    from core.outputs import RunOutputs
    from core.records import FileRecord
    from core.stores import Store

# a summary is read by people; the page lists them all
_ROWS = 200
_WANTED = ("torch", "rocm")


def table(put: Sequence[FileRecord]) -> None:
    """Print the wheels of an upload."""
    console.table(
        ("file", "size", "sha256"), [(one.name, console.size(one.size), one.sha256[:12]) for one in put]
    )


def set_outputs(files: JobFiles, outputs: RunOutputs, groups: Sequence[str]) -> None:
    """Give later steps the addresses of what was uploaded.

    Args:
        files: The job's files.
        outputs: The run, with the addresses of its store.
        groups: The artifact groups; of several, each output is JSON, group to address.
    """
    pages = {group: outputs.python_find_links_url(group) for group in groups}
    roots = {group: outputs.python_index_url(group) for group in groups}
    for name, urls in (("package_find_links_url", pages), ("package_index_url", roots)):
        files.set_output(name, urls[groups[0]] if len(groups) == 1 else json.dumps(urls))


def summarize(outputs: RunOutputs, artifact_group: str, put: Sequence[FileRecord]) -> None:
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
    links = f"{job_files.link('page for --find-links', page)}, " + job_files.link(
        "index", outputs.python_index_url(artifact_group)
    )
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
