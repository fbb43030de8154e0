"""`bisect`: the first run, or version of an index, at which a command fails, and what differs in it."""

import argparse
import json
from pathlib import Path
from typing import Any

from ci import install
from ci.bisection.index_versions import IndexVersions
from ci.bisection.judging import RevisionSource, judge_revision
from ci.bisection.request import BisectRequest
from ci.bisection.search import Bisection, Judgement, Revision, last_output, revisions_from
from ci.bisection.stored_runs import StoredRuns
from core import console, files
from core.cli.options import GROUP_OPTIONS, common_from, is_given
from core.cli.sessions import command_again
from core.errors import UsageError
from core.packages.options import add_package_source, source_options
from core.packages.sources import CombinedSource
from pytorch_build.lock.source_lock import SourceLock
from rocm_packaging.origin import named_source

_A_WEEK = 7 * 86400.0

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, "store", "release-type", "python", "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    ends = "a run id, a version, a day (2026-11-20), or the file of a source lock"
    add(
        "--good",
        required=True,
        metavar="RUN",
        help=f"where it still works: {ends}",
    )
    add(
        "--bad",
        required=True,
        metavar="RUN",
        help=f"where it fails: {ends}",
    )
    add(
        "command",
        nargs="+",
        metavar="COMMAND",
        help="what is run, after --: it ends with 0 for good, 125 for skip, 1 to 127 for bad, more to stop",
    )
    add(
        "--packages",
        action="append",
        metavar="NAMES",
        help="what is installed (default: torch and what it requires; with --rocm rocm[libraries,devel])",
    )
    add("--rocm", action="store_true", help="search ROCm's own packages, without PyTorch")
    add_package_source(
        parser,
        "search versions of these instead of a store's runs; with --store, where the runs' ROCm is",
        "",
    )
    add(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="run it N times; one failure is bad (default: 1)",
    )
    add(
        "--timeout",
        type=float,
        default=_A_WEEK,
        metavar="SECONDS",
        help="a command that takes longer is bad (default: no limit)",
    )
    add(
        "--directory",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where it runs (default: here)",
    )
    add("--no-verify", action="store_true", help="do not verify first that good is good and bad is bad")
    add("--build", action="store_true", help="build the wheels that runs lack, instead of skipping them")
    add(
        "--state",
        type=Path,
        metavar="DIR",
        help="where the search is kept (default: .cache/bisect)",
    )
    add("--reset", action="store_true", help="forget the search in progress")
    add("--json", action="store_true", help="also print the result as JSON")
    parser.epilog = "Run the same command again to continue an interrupted search."


def run(arguments: argparse.Namespace) -> None:
    """Search, from where the last call stopped."""
    source = _revision_source(arguments)
    is_dry_run = source.request.common.dry_run
    folder = source.request.folder
    state_file = folder / "state.json"
    with files.locked(folder / ".lock", what=f"the search in {folder}"):
        bisection = _begin_or_continue(arguments, source, state_file)
        _show_plan(bisection, is_whole=is_dry_run)
        if is_dry_run:
            return
        while (revision := bisection.next_revision) is not None:
            bisection = _test_next(bisection, source, revision)
            bisection.write(state_file)

    _show_result(bisection)
    if arguments.json:
        console.result(json.dumps(bisection.result, indent=1))


def _revision_source(arguments: argparse.Namespace) -> RevisionSource:
    """Return what is searched, by the options."""
    # Runs of CI are read where CI leaves them.
    for end in (arguments.bad, arguments.good):
        if end.isdecimal():
            arguments.run_id = end
    common = common_from(arguments)
    options = source_options(arguments)
    source = named_source(options, common, common.gpu_family or options.index_subdir)
    is_over_index = options.named and not is_given(arguments, "store")
    _require_valid_options(arguments, is_over_index=is_over_index)

    default_package = "rocm[libraries,devel]" if arguments.rocm else "torch"
    request = BisectRequest(
        common=common,
        folder=(arguments.state or common.cache / "bisect").absolute(),
        packages=install.parse_requirements(arguments.packages or [default_package]),
        source=source or CombinedSource(parts=()),
        good=_read_revision_name(arguments.good),
        bad=_read_revision_name(arguments.bad),
        command=arguments.command,
        command_folder=arguments.directory,
        repeat=arguments.repeat,
        timeout=arguments.timeout,
    )
    if is_over_index:
        return IndexVersions(request=request)
    return StoredRuns(request=request, rocm_only=arguments.rocm)


def _require_valid_options(arguments: argparse.Namespace, *, is_over_index: bool) -> None:
    message: str | None = None
    if arguments.repeat < 1:
        message = "--repeat takes 1 or more."
    elif arguments.timeout <= 0:
        message = "--timeout takes more than 0."
    elif arguments.build and (arguments.rocm or is_over_index):
        message = "--build is for runs of PyTorch in a store."
    elif not arguments.directory.is_dir():
        message = f"--directory {arguments.directory}: there is no such folder."
    if message is not None:
        raise UsageError(message, hint="Correct it, or leave it out.")


def _read_revision_name(text: str) -> str:
    """Return a run's id, a version or a day as it is, and the digest of a lock's file."""
    path = Path(text)
    if path.is_file():
        return SourceLock.read(path).digest()
    return text


def _begin_or_continue(arguments: argparse.Namespace, source: RevisionSource, state_file: Path) -> Bisection:
    """Return the search that is stored, or a new one; another search that is not at its end is not lost."""
    question = _question(arguments, source)
    if state_file.is_file() and not arguments.reset:
        stored_search = Bisection.read(state_file)
        if stored_search.question == question:
            return stored_search
        has_begun = len(stored_search.verdicts) > 1
        if has_begun and stored_search.next_revision is not None:
            raise UsageError(
                f"Another search was begun, and is not finished:\n{stored_search.again}",
                hint="Continue it, or start anew: --reset, or --state DIR to keep both.",
            )

    bisection = _begin(arguments, source, question)
    if not source.request.common.dry_run:
        bisection.write(state_file)
    return bisection


def _question(arguments: argparse.Namespace, source: RevisionSource) -> dict[str, Any]:
    """Return what tells one search from another."""
    names = ("good", "bad", "command", "repeat", "timeout", "build")
    question = {name: getattr(arguments, name) for name in names}
    question["packages"] = [str(requirement) for requirement in source.request.packages]
    question["where"] = source.description
    return question


def _begin(arguments: argparse.Namespace, source: RevisionSource, question: dict[str, Any]) -> Bisection:
    """Return a new search."""
    request = source.request
    command = command_again()
    if arguments.reset:
        command = command.replace(" --reset", "", 1)
    revisions = revisions_from(source.list_revisions(), request.good, request.bad)
    bisection = Bisection(
        question=question,
        points=revisions,
        build=arguments.build,
        again=command,
    )
    if not arguments.no_verify:
        return bisection

    good = Judgement(
        result="good",
        why="not tested",
        facts=source.read_facts(revisions[0]),
    )
    bad = Judgement(
        result="bad",
        why="not tested",
        facts=source.read_facts(revisions[-1]),
    )
    bisection = bisection.with_judgement(revisions[0], good)
    return bisection.with_judgement(revisions[-1], bad)


def _test_next(
    bisection: Bisection,
    source: RevisionSource,
    revision: Revision,
) -> Bisection:
    """Return the search with the judgement of one more revision."""
    number = bisection.tests_done + 1
    most_tests = bisection.tests_done + bisection.most_tests
    day = revision.started[:10]
    with console.group(f"{revision.name} of {day} (test {number} of at most {most_tests})"):
        if revision.lacks and not bisection.build:
            judgement = Judgement(result="skip", why=revision.lacks)
        else:
            judgement = judge_revision(source, revision)
        console.done(f"{revision.name}: {judgement.result}, {judgement.why}")
    return bisection.with_judgement(revision, judgement)


def _show_plan(bisection: Bisection, *, is_whole: bool) -> None:
    """Print how many revisions there are, and how many tests are left; of a plan the whole list."""
    rows: list[tuple[str, str, str]] = []
    for revision in bisection.points:
        judgement = bisection.verdicts.get(revision.name)
        state = revision.lacks if judgement is None else judgement.result
        rows.append((revision.name, revision.started[:16], state))
    if is_whole:
        console.table(("run", "from", "known"), rows)

    lacking_count = sum(bool(revision.lacks) for revision in bisection.points)
    advice = ""
    if lacking_count > 0 and _may_build(bisection):
        advice = " (--build builds them)"
    next_test = "none is left (--reset begins anew)"
    if bisection.next_revision is not None:
        next_test = f"the next at {bisection.next_revision.name}"
    tests = console.counted(bisection.most_tests, "test")
    console.say(f"{len(rows)} in all, {lacking_count} without wheels{advice}: {tests} at most, {next_test}.")


def _may_build(bisection: Bisection) -> bool:
    """Return whether --build would help: runs of PyTorch have a release type."""
    return bool(bisection.points[-1].kind) and not bisection.build


def _show_result(bisection: Bisection) -> None:
    """Print the first bad revision, and what differs in it."""
    bad = bisection.first_bad
    good = bisection.last_good
    time = bad.started[:16].replace("T", " ")
    console.done(f"The first bad one is {bad.name}, of {time}; the last good one is {good.name}.")

    reasons = bisection.untested_reasons
    if reasons:
        advice = " (--build builds what has no wheels)" if _may_build(bisection) else ""
        console.warn(f"It may also be {' or '.join(reasons)}, which could not be tested{advice}:")
    for name, reason in reasons.items():
        console.say(f"  {name}: {reason}")
    if bisection.flakiness:
        console.warn(bisection.flakiness)

    changes = bisection.changes
    if changes:
        console.say(f"What differs between {good.name} and {bad.name}:")
    else:
        console.say("Nothing known differs.")
    for change in changes:
        lines = [f"  {change.what}: {change.good} -> {change.bad}", *filter(None, change.more)]
        console.say("\n    ".join(lines))

    judgement = bisection.verdicts[bad.name]
    console.say(f"{bad.name} is bad: {judgement.why}.{last_output(judgement)}")
