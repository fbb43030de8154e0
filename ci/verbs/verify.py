"""`verify`: whether a wheel is what its record and statement say, and which commits it is from."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from core import console, files, temporary
from core.cli.options import add_platform, common_from, is_given
from core.errors import WheelError
from core.wheel import record

if TYPE_CHECKING:
    from ci.promote.runs import Recorded
    from ci.provenance.evidence import Located, Statement
    from core.run.records import FileRecord


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "a wheel or sdist: a path, or an http(s), s3 or file address"
    parser.add_argument("files", nargs="+", metavar="WHEEL", help=what)
    add_platform(parser)
    parser.add_argument("--json", action="store_true", help="print what is known as JSON, a list")
    parser.epilog = (
        "A file that lies in a run's outputs is compared with that run; any other one with --run-id in "
        "--store. Without a statement, a record, or with anything that contradicts, it fails."
    )


def run(arguments: argparse.Namespace) -> None:
    """Verify files, one after the other; the first that is not right ends it."""
    from ci.provenance.evidence import locate
    from core.env.installer import configured

    common = common_from(arguments)
    named = is_given(arguments, "run_id") or is_given(arguments, "store")
    known = []
    common.cache.mkdir(parents=True, exist_ok=True)
    with temporary.folder("verify", within=common.cache) as scratch:
        for number, file in enumerate(arguments.files):
            folder = files.made(scratch / str(number))
            # from the installer's settings, which takes a moment
            cert = configured().cert if file.startswith("https://") else ""
            known.append(_verified(locate(file, common, folder, named=named, cert=cert)))
            if not arguments.json:
                console.result(_text(known[-1]))
    if arguments.json:
        console.result(json.dumps(known, indent=2, ensure_ascii=False))


def _verified(located: Located) -> dict[str, Any]:
    from ci.provenance import evidence
    from core.wheel import distributions

    path = located.path
    if not distributions.is_distribution(path.name):
        raise WheelError(f"{path.name} is neither a wheel nor an sdist.", hint="Give a .whl or .tar.gz file.")
    file, _ = distributions.describe(path, key="", sha256=files.sha256(path))
    by, _ = evidence.check_file(file, evidence.gather(located.run, file, located.group))
    if path.suffix == ".whl":
        record.require_sound(path)
    statement, where = evidence.statement_of(located.run, by, path.name)
    evidence.check_statement(statement, where, file, by)
    return _known(file, by, statement, f"{located.run.url}/{where}")


def _known(file: FileRecord, by: Recorded, statement: Statement, where: str) -> dict[str, Any]:
    own = {one.name for one in statement.sources}
    return {
        "file": file.name,
        **file.model_dump(include={"sha256", "size", "distribution", "version"}),
        "stage": by.record.stage,
        **by.record.model_dump(include={"cell"}),
        "run_id": by.record.run_id,
        **statement.model_dump(include={"builder", "invocation", "started", "finished"}),
        "record": by.document.key,
        "statement": where,
        "sources": [
            {
                "project": one.name,
                "commit": one.digest.get("gitCommit", ""),
                "uri": one.uri,
                "ref": one.annotations.get("ref", ""),
                "edited": "uncommitted_changes_sha256" in one.annotations,
            }
            for one in statement.sources
        ],
        "materials": [
            {"name": one.name, "uri": one.uri, "digest": dict(one.digest)}
            for one in statement.dependencies
            if one.name not in own
        ],
    }


def _text(known: dict[str, Any]) -> str:
    """Write what is known in lines that a narrow terminal takes: a word, then what it is."""
    from ci.report.text import spelt

    cell = known["cell"]
    ran_on = [part for part in (cell["torch_ref"], cell["gpu_family"], cell["python"]) if part]
    lines = [
        f"{known['file']}: verified",
        f"  sha256   {known['sha256']}",
        f"  made by  {known['stage']} ({', '.join(ran_on)}), run {known['run_id']}",
        f"  on       {known['builder']}",
        f"  in       {known['invocation']}",
        f"  at       {known['started']}",
        f"  record   {known['record']}",
    ]
    for one in known["sources"]:
        of = f"{one['project']} {one['ref']}".rstrip()
        lines += [f"  from     {of}{', with edits that are in no commit' if one['edited'] else ''}"]
        lines += [f"           {one['commit']}", f"           {one['uri'].rpartition('@')[0]}"]
    if not known["sources"]:
        lines.append("  from     sources that its record does not name")
    lines += [f"  with     {one['name']}" for one in known["materials"]]
    # a statement from elsewhere may hold anything
    return "\n".join(spelt(line).replace("\n", "\\n") for line in lines)
