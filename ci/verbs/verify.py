"""`verify`: whether a wheel is what its record and statement say, and which commits it is from."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from core import console, files, temporary
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, add_platform, common_from, is_given
from core.errors import WheelError
from core.wheel import record

if TYPE_CHECKING:
    from pathlib import Path

    from ci.promote.documents import Decision
    from ci.provenance.evidence import FileOrigin, Statement
    from ci.provenance.facts import RunFile
    from core.run.records import FileRecord

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="WHEEL",
        help="a wheel or sdist: a path, or an http(s), s3 or file address",
    )
    add_platform(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print what is known as JSON, a list",
    )
    parser.epilog = (
        "A file that lies in a run's outputs is compared with that run, one that is staged or released with "
        "the run that was staged; any other one with --run-id in --store. Without a statement, a record, or "
        "with anything that contradicts, it fails."
    )


def run(arguments: argparse.Namespace) -> None:
    """Verify files, one after the other; the first that is not right ends it."""
    from ci.provenance.evidence import locate
    from core.env.installer import configured_sources

    common = common_from(arguments)
    is_run_named = is_given(arguments, "run_id") or is_given(arguments, "store")
    reports: list[dict[str, Any]] = []
    common.cache.mkdir(
        parents=True,
        exist_ok=True,
    )
    with temporary.folder("verify", within=common.cache) as scratch:
        for number, address in enumerate(arguments.files):
            folder = files.ensure_folder(scratch / str(number))
            # The installer's settings have the certificate, and take a moment to read.
            cert = configured_sources().cert if address.startswith("https://") else ""
            path, origin = locate(
                address,
                common,
                folder,
                is_run_named=is_run_named,
                cert=cert,
            )
            report = _verify(path, origin)
            reports.append(report)
            if not arguments.json:
                console.result(_text_of(report))
    if arguments.json:
        console.result(
            json.dumps(
                reports,
                indent=2,
                ensure_ascii=False,
            )
        )


def _verify(path: Path, origin: FileOrigin) -> dict[str, Any]:
    """Compare a file with its record and statement; return what is known of it."""
    from ci.provenance import evidence
    from core.wheel import distributions

    if not distributions.is_distribution(path.name):
        raise WheelError(f"{path.name} is neither a wheel nor an sdist.", hint="Give a .whl or .tar.gz file.")

    file, _sidecar = distributions.describe(
        path,
        key="",
        sha256=files.sha256(path),
    )
    records = evidence.find_records(origin.run, file, origin.group)
    run_file = evidence.check_file(file, records)
    if path.suffix == ".whl":
        record.require_sound(path)

    statement, statement_path = evidence.read_statement(origin.run, run_file)
    evidence.check_statement(
        statement,
        statement_path,
        file,
        run_file,
    )
    report = _describe_file(
        file,
        run_file,
        statement,
        f"{origin.run.url}/{statement_path}",
    )
    if origin.decision is not None:
        report["release"] = _describe_release(origin.decision, run_file)
    return report


def _describe_release(decision: Decision, run_file: RunFile) -> dict[str, Any]:
    """Return what `--json` prints of the decision that released a file."""
    rules: set[str] = set()
    overridden: set[str] = set()
    for ruling in decision.rulings:
        is_of_python = ruling.python in {None, run_file.record.cell.python_tag}
        if ruling.family == run_file.group and is_of_python:
            rules.add(ruling.rule)
            overridden.update(ruling.overridden)
    return {
        "decision": decision.key,
        "set": decision.set_name,
        "by": decision.by,
        "decided": decision.decided,
        "rules": sorted(rules),
        "overridden": sorted(overridden),
    }


def _describe_file(
    file: FileRecord,
    run_file: RunFile,
    statement: Statement,
    statement_url: str,
) -> dict[str, Any]:
    """Return what `--json` prints of a file."""
    sources: list[dict[str, Any]] = []
    for source in statement.sources:
        described_source = {
            "project": source.name,
            "commit": source.digest.get("gitCommit", ""),
            "uri": source.uri,
            "ref": source.annotations.get("ref", ""),
            "edited": "uncommitted_changes_sha256" in source.annotations,
        }
        sources.append(described_source)

    source_names = {source.name for source in statement.sources}
    materials: list[dict[str, Any]] = []
    for material in statement.dependencies:
        if material.name not in source_names:
            described_material = {
                "name": material.name,
                "uri": material.uri,
                "digest": dict(material.digest),
            }
            materials.append(described_material)

    return {
        "file": file.name,
        **file.model_dump(include={"sha256", "size", "distribution", "version"}),
        "stage": run_file.record.stage,
        **run_file.record.model_dump(include={"cell"}),
        "run_id": run_file.record.run_id,
        **statement.model_dump(include={"builder", "invocation", "started", "finished"}),
        "record": run_file.stored_record.document.key,
        "statement": statement_url,
        "sources": sources,
        "materials": materials,
    }


def _text_of(report: dict[str, Any]) -> str:
    """Write what is known in lines that a narrow terminal takes: a word, then what it is."""
    from ci.tables import spelt

    cell = report["cell"]
    cell_parts = filter(None, (cell["torch_ref"], cell["gpu_family"], cell["python"]))
    lines = [
        f"{report['file']}: verified",
        f"  sha256   {report['sha256']}",
        f"  made by  {report['stage']} ({', '.join(cell_parts)}), run {report['run_id']}",
        f"  on       {report['builder']}",
        f"  in       {report['invocation']}",
        f"  at       {report['started']}",
        f"  record   {report['record']}",
    ]
    for source in report["sources"]:
        edits = ", with edits that are in no commit" if source["edited"] else ""
        project_and_ref = f"{source['project']} {source['ref']}".rstrip()
        lines.append(f"  from     {project_and_ref}{edits}")
        lines.append(f"           {source['commit']}")
        lines.append(f"           {source['uri'].rpartition('@')[0]}")
    if not report["sources"]:
        lines.append("  from     sources that its record does not name")
    lines += [f"  with     {material['name']}" for material in report["materials"]]

    if "release" in report:
        release = report["release"]
        lines.append(f"  released {release['set']}, by {release['by']}, {release['decided']}")
        lines.append(f"           by {', '.join(release['rules'])}: {release['decision']}")
        lines += [f"  although {reason}" for reason in release["overridden"]]

    # A statement from elsewhere may hold anything.
    return "\n".join(spelt(line).replace("\n", "\\n") for line in lines)
