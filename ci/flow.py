"""invoke's flows: a run of CI, a release, one torch ref, the nightly image, a promotion; on one machine."""

import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Literal

from ci import jobs
from ci.plan import outputs
from ci.plan.data import OwnStore
from ci.plan.origins import needs
from ci.plan.plan import plan as plan_of
from ci.promote.runs import is_sample
from ci.verbs import configure
from core import console, errors, files, process
from core.cli import Verb, dispatch, verb_parser
from core.cli.options import DEFAULT_STORE, FAILURE_FILE, ROOT, Common, common_from, environment
from core.data import read_toml
from core.errors import EnvironmentSetupError, FatalError, MissingInputError, ProcessError, UsageError
from core.run import LOCAL_RUN, is_local, records, this_platform
from core.run.plan import Plan, RocmOrigin
from core.run.records import edited_words
from pytorch_build.build.build import BORROWED, borrow, built, needed
from pytorch_build.context import Context, context
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import torch_ref
from pytorch_build.sources.trees import edits_of
from rocm_packaging.origin import has_rocm, own_run

_PYTHON = re.compile(r"python3\.\d+t?")
RELEASES = ("nightly", "prerelease", "dev", "rehearsal")
_WITHOUT_TABLE = 2  # jobs: a ref and its page
# pip's options are these of ours
_ROCM_OPTIONS = {"--find-links": "--rocm-find-links", "--extra-index-url": "--rocm-index-url"}
_CONFIGURE = Verb("configure", "ci.verbs.configure", "an event -> the plan of the run")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one job ended."""

    name: str
    result: Literal["ok", "failed", "left out"]
    why: str = ""
    seconds: float = 0.0


def run_ref(common: Common, *, python: str = "", rocm_layout: str = "", policy: str = "") -> None:
    """Run the sessions of one torch ref, and report on the run even where one fails."""
    require_pythons([python])
    chosen = context(common)
    for session, why in jobs.left_out(chosen).items():
        console.say(f"{session}: left out, {why}")
    named = replace(common, torch_ref=chosen.ref.name, gpu_family=chosen.gpu_family)
    made = jobs.ref_jobs(chosen, jobs.posargs_of(named), python, rocm_layout, policy=policy)
    run_jobs(made, look=common, dry_run=common.dry_run, root=common.root)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """Changed source trees by project, the run that lends what they lack, and where else ROCm comes from."""

    trees: Mapping[str, Path]
    lender: str = LOCAL_RUN
    policy: str = ""
    rocm: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        """Name a run after the trees, so that the next call goes on with it."""
        paths = sorted(map(str, self.trees.values()))
        name = re.sub("[^a-z0-9]+", "-", PurePath(paths[0]).name.lower()).strip("-") or "tree"
        return f"{LOCAL_RUN}-{name}-{files.digest_of(paths)[:8]}"


def run_trees(common: Common, changed: Changed, *, python: str = "", other: str = "") -> None:
    """Take changed trees to tested wheels, in a run of their own that borrows what it lacks."""
    require_pythons([python])
    if other or not changed.trees:
        why = f"{other} is of no use with one" if other else "--from-run-id and --rocm-… are for one alone"
        raise UsageError(
            f"A changed tree has a run of its own: {why}.",
            hint="Trees are named by --pytorch-dir and the like: invoke ci --help.",
        )
    run_id = common.run_id if common.run_id != LOCAL_RUN else changed.run_id
    if not is_local(run_id):
        raise UsageError(
            f"--run-id {run_id!r}: a run of others replaces no wheel, and each edit makes a new one.",
            hint=f"Begin the name with {LOCAL_RUN}-, as in --run-id {LOCAL_RUN}-{run_id}.",
        )
    chosen = context(replace(common, run_id=run_id))
    named = replace(chosen.common, torch_ref=chosen.ref.name, gpu_family=chosen.gpu_family)
    chosen = replace(chosen, common=named)
    lender = replace(chosen, common=replace(named, run_id=changed.lender))
    tag = python_tag(python or f"{sys.version_info.major}.{sys.version_info.minor}")
    edits = {project: edits_of(tree)[1] for project, tree in changed.trees.items()}
    lent = lender.common.open_for_reading(), lender.common.outputs, lender.artifact_group
    if changed.lender != LOCAL_RUN and not records.read_all(*lent):
        raise MissingInputError(
            f"Run {changed.lender} has nothing of {lender.artifact_group} to lend in {common.store}.",
            hint="Name another run with --from-run-id, or leave it out.",
        )
    console.say(f"run {run_id}:")
    for project, tree in changed.trees.items():
        console.say(f"  {project}: {tree}, {edited_words(edits[project])}")
    rocm = _rocm_of(chosen, lender, changed, tag)
    missing = [*jobs.JOBS["build_rocm"][1:]] if rocm is None else []
    below = {one for project in changed.trees for one in needed(chosen, project)} - {*changed.trees}
    for project in jobs.BUILDS:
        if project in below & {*chosen.ref.components} and not chosen.ref.projects[project].prebuilt:
            missing += _borrowed(chosen, lender, tag, project)
    words = jobs.posargs_of(named)
    trees, policy = changed.trees, changed.policy
    made = jobs.ref_jobs(chosen, words, python, trees=trees, missing=missing, rocm=rocm or (), policy=policy)
    run_jobs(made, look=common, dry_run=common.dry_run, root=common.root)


def _borrowed(chosen: Context, lender: Context, tag: str, project: str) -> Sequence[str]:
    """Borrow one project's wheels, anew where the lender has others now; or name what builds them."""
    here, there = built(chosen, tag, project), built(lender, tag, project)
    own = here is not None and BORROWED not in here.details
    if own or there is None:
        console.say(f"  {project}: {'of this run' if here else 'built in this run: nothing has it'}")
        return () if own or here else (jobs.BUILDS[project],)
    console.say(f"  {project}: {there.files[0].version}, borrowed from run {lender.common.run_id}")
    same = here is not None and {one.sha256 for one in here.files} == {one.sha256 for one in there.files}
    if not same and not chosen.common.dry_run:
        borrow(chosen, lender, tag, project)
    return ()


def _rocm_of(chosen: Context, lender: Context, changed: Changed, tag: str) -> tuple[str, ...] | None:
    """Return the options that lead to ROCm, and say where it is from; None where this run has to build it."""
    if not chosen.gpu:
        return ()
    if changed.rocm:
        console.say(f"  ROCm: as {' '.join(changed.rocm)} says")
        return changed.rocm
    for one in (chosen, lender):
        if has_rocm(own_run(one.common, one.artifact_group)):
            console.say(f"  ROCm: from run {one.common.run_id}")
            store = (f"--rocm-store={one.common.store}",) if one.common.store != DEFAULT_STORE else ()
            return (f"--rocm-run-id={one.common.run_id}", *store) if one is lender else ()
    if (torch := built(lender, tag, "torch")) and (found := torch.details.get("rocm_options")):
        version = torch.inputs["rocm"][0]
        console.say(f"  ROCm: {version}, from where the torch of run {lender.common.run_id} had it")
        places = zip(found[::2], found[1::2], strict=True)
        return (f"--rocm-version={version}", *(f"{_ROCM_OPTIONS[name]}={where}" for name, where in places))
    if chosen.ref.rocm_version:
        console.say(f"  ROCm: {chosen.ref.rocm_version}, built in this run: nothing has it")
        return None
    console.say(f"  ROCm: from the release index of {chosen.gpu_family}")
    return ()


def run_plan(
    words: Sequence[str],
    target: jobs.Target,
    *,
    at_once: int = 1,
    keep_going: bool = False,
    dry_run: bool = False,
    root: Path = ROOT,
) -> None:
    """Plan, resolve, and run every job of the plan on this platform."""
    plan, platform = planned(words, target), this_platform()
    outputs.show(plan)
    first = jobs.setup_job(plan, target)
    if dry_run:
        print_jobs([first, *jobs.plan_jobs(unresolved(plan), platform, target)])
        return
    require_pythons(cell.python for cell in plan.cells if cell.platform == platform)
    file = root / jobs.PLAN_FILE
    plan.write(file)
    done: list[Outcome] = []
    if plan.cells:
        done += run_all([first], runner(root, together=False))
        if done[0].result != "ok":
            show(done)
        plan = Plan.read(file)
    made = jobs.plan_jobs(plan, platform, target)
    if not made:
        raise MissingInputError(
            f"The plan has no job on {platform}: {plan.enable_build_jobs.reason}.",
            hint="See what it leaves out, above.",
        )
    done += run_all(made, runner(root, together=at_once > 1), at_once=at_once, keep_going=keep_going)
    show(done)


def planned(words: Sequence[str], target: jobs.Target) -> Plan:
    """Make the plan of an event that options describe, for a run whose outputs stay on this machine."""
    _module, parser = verb_parser("ci", _CONFIGURE)
    arguments = parser.parse_args(list(words))
    question = configure.question(arguments, common_from(arguments), environment())
    data = question.data.model_copy(update={"upload": OwnStore(store=target.store)})
    return plan_of(replace(question, data=data))


def unresolved(plan: Plan) -> Plan:
    """Name what `find_rocm` and `resolve` would fill in, so that the chain can be shown before."""
    origins = tuple(
        RocmOrigin(
            platform=one.platform,
            artifact_group=one.artifact_group,
            run_id=plan.rocm.artifact_run_id or f"<artifact run of {one.artifact_group}>",
        )
        for needed in needs(plan).values()
        for one in needed
    )
    cells = tuple(
        cell
        if cell.stage.endswith("rocm")
        else cell.model_copy(update={"versions": {"torch": f"<torch of {cell.torch_ref}>"}})
        for cell in plan.cells
    )
    rocm = plan.rocm.model_copy(update={"origins": origins})
    return plan.model_copy(update={"cells": cells, "rocm": rocm})


def release_words(kind: str, families: str, refs: str, pythons: str) -> Sequence[str]:
    """Write the options of a release's plan."""
    if kind not in RELEASES:
        raise UsageError(
            f"--type {kind!r} is not released by a flow.",
            hint=f"{errors.nearest(kind, RELEASES)} A final release is promoted: invoke promote.",
        )
    for name in filter(None, (one.strip() for one in refs.split(",")) if kind == "rehearsal" else ()):
        if not is_sample(f"+{torch_ref(name).local_label}"):
            raise UsageError(
                f"A rehearsal is of the sample's wheels alone, and torch ref {name} builds others.",
                hint="Leave --torch-ref out, or try these in a folder: --type dev --distribution-store DIR.",
            )
    given = {
        f"{this_platform()}_amdgpu_families": families or "all",
        "release_type": kind,
        "pytorch_git_refs": refs,
        "pytorch_python_versions": pythons,
    }
    inputs = (f"--input={name}={value}" for name, value in given.items() if value)
    return ("--event=workflow_dispatch", *inputs)


def require_pythons(named: Iterable[str]) -> None:
    """Refuse Pythons that this machine lacks, before anything is done for them."""
    wanted = sorted({*named} - {""})
    for one in wanted:
        if not _PYTHON.fullmatch(f"python{one}"):
            raise UsageError(f"--python {one!r} is no Python version.", hint="Write it like 3.12 or 3.13t.")
    lacking = [one for one in wanted if not _runs(f"python{one}")]
    if not lacking or process.which("py"):  # Windows' launcher knows where they are
        return
    folders = map(Path, environment().get("PATH", "").split(os.pathsep))
    names = {path.name for folder in folders for path in folder.glob("python3.*")}
    known = sorted(filter(_PYTHON.fullmatch, names), key=lambda one: (len(one.rstrip("t")), one))
    there = [one for one in known if _runs(one)]
    raise EnvironmentSetupError(
        f"There is no python{' and no python'.join(lacking)} on the PATH, "
        f"where {', '.join(there) or 'none'} can be found.",
        hint=f"Install it, as `uv python install {' '.join(lacking)}` does, or choose another: --python.",
    )


@cache  # a flow asks, and each of its parts
def _runs(program: str) -> bool:
    """Whether an interpreter is there and starts: a version manager's shim may stand for none."""
    found = process.which(program)
    return found is not None and process.capture([str(found), "-c", ""], check=False).returncode == 0


def run_jobs(
    made: Sequence[jobs.Job], *, look: Common | None = None, dry_run: bool = False, root: Path = ROOT
) -> None:
    """Run jobs one after another, or print them; with a `look` at what their options name, what is left."""
    if dry_run:
        print_jobs(made)
    else:
        require_pythons(call.python for job in made for call in job.calls)
        # not where a write cannot be foreseen, or each session has a fold
        if look and "://" not in look.store and console.mode() != "github" and Path.cwd() == root == ROOT:
            made = left(made)
        show(run_all(made, runner(root, together=False)))


def left(made: Sequence[jobs.Job]) -> Sequence[jobs.Job]:
    """Leave out the sessions that have nothing to do, up to the first that has: what follows goes by that."""
    every = ((session, call) for job in made for call in job.calls for session in call.sessions)
    idle = {session for session, call in takewhile(lambda one: _idle(*one), every)}

    def rest(call: jobs.Call) -> jobs.Call:
        return replace(call, sessions=tuple(one for one in call.sessions if one not in idle))

    return [replace(job, calls=tuple(one for one in map(rest, job.calls) if one.sessions)) for job in made]


def _idle(session: str, call: jobs.Call) -> bool:
    """Run a session's verb up to where its work begins; it has said all that it says where it has none."""
    row = read_toml(ROOT / "sessions.toml")[session]
    programs, more = None, ["--verbose"] if console.echoes() else []
    if row.get("cells") or row.get("environment"):
        # where nox has it, and takes it again as it is
        folder = ROOT / ".nox" / "-".join([session, *filter(None, call.python.split("."))])
        programs = folder / ("Scripts" if os.name == "nt" else "bin")
        if not process.which("python", path=str(programs)) or "NOX_ENABLE_STALENESS_CHECK" in environment():
            return False
        more.append(f"--python={programs / 'python'}")
    package, *words = row["call"].split()
    try:
        with process.looking(programs):
            console.detail(f"session {session}")
            dispatch(package, "", import_module(f"{package}.__main__").VERBS, [*words, *more, *call.posargs])
    except errors.InterruptedStageError:
        raise
    except (Exception, process.WorkLeft):  # noqa: BLE001 - the session says what is wrong
        return False
    return True


def run_all(
    made: Sequence[jobs.Job], work: Callable[[jobs.Job], None], *, at_once: int = 1, keep_going: bool = False
) -> Sequence[Outcome]:
    """Run every job after those that it needs, the first ones first."""
    waiting = list(made)
    running: dict[Future[None], tuple[jobs.Job, float]] = {}
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        while waiting or running:
            ready = [one for one in waiting if outcomes.keys() >= {*one.needs}]
            if ready and len(running) < at_once:
                waiting.remove(ready[0])
                if why := _left_out(ready[0], outcomes, keep_going=keep_going):
                    outcomes[ready[0].name] = Outcome(name=ready[0].name, result="left out", why=why)
                else:
                    running[pool.submit(work, ready[0])] = ready[0], time.monotonic()
                continue
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, started = running.pop(future)
                outcomes[job.name] = _outcome(job.name, future, time.monotonic() - started)
    return [outcomes[job.name] for job in made]


def _left_out(job: jobs.Job, outcomes: Mapping[str, Outcome], *, keep_going: bool) -> str:
    """Return why a job does not run; "" where it does."""
    built = [outcomes[name] for name in job.needs if job.stage == "promote" and name.startswith("build_")]
    if lacking := [one for one in built if one.result != "ok"]:  # which nobody may override
        return f"{lacking[0].name} {lacking[0].result}"
    if job.tolerant:
        idle = job.wants_results and all(outcomes[name].result == "left out" for name in job.needs)
        return "nothing has run that it needs" if idle else ""
    failed = [outcomes[name] for name in job.needs if outcomes[name].result != "ok"]
    if failed:
        return f"{failed[0].name} {failed[0].result}"
    stopped = not keep_going and any(one.result == "failed" for one in outcomes.values())
    return "another job failed" if stopped else ""


def _outcome(name: str, future: Future[None], seconds: float) -> Outcome:
    try:
        future.result()
    except FatalError as problem:
        return Outcome(name=name, result="failed", why=problem.message, seconds=seconds)
    return Outcome(name=name, result="ok", seconds=seconds)


def runner(root: Path, *, together: bool) -> Callable[[jobs.Job], None]:
    """Return the function that runs a job: its calls of nox, in order.

    After a failure the run's page is written, but what it says of the run, earlier work too, is not printed.
    """
    failed: list[str] = []

    def called(call: jobs.Call, title: str, env: Mapping[str, str]) -> bool:
        words = [sys.executable, "-m", "nox", "--no-error-on-external-run", *call.words]
        quiet = bool(failed) and call.sessions == jobs.JOBS["summary"]
        with console.group(title, fold=together or quiet):  # nox's stages have folds of their own
            if not (together or quiet):
                with suppress(ProcessError):
                    process.run(words, cwd=root, env=env, quiet=True)
                    return True
                return False
            done = process.capture(words, cwd=root, env=env, check=False)
            said = (done.stdout + done.stderr).rstrip()
            if quiet:  # no page where nothing was recorded: what failed before is told at the end
                said = "\n".join(line for line in said.splitlines() if line.startswith("page "))
            console.say(said)
            return quiet or done.returncode == 0

    def work(job: jobs.Job) -> None:
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder, "failure.txt")
            # with a matrix in the environment the noxfile has cells in the place of these sessions
            verbose = {"VERBOSE_OUTPUT": "1"} if console.echoes() else {}
            env = process.inherited(MATRIX=None, **verbose, **{FAILURE_FILE: str(note)})
            for call in job.calls:
                more = f" … {call.sessions[-1]}" if len(call.sessions) > 1 else ""
                title = f"{job.name}: {call.sessions[0]}{more}".removeprefix(f"{call.sessions[0]}: ")
                if not called(call, title, env):
                    failed.append(job.name)
                    why = "A session failed before its stage began. What nox said stands above.\n"
                    why += f"again: nox {shlex.join(call.words)}"
                    if note.is_file():  # in the words of the stage, which annotates them itself
                        why = "" if console.mode() == "github" else note.read_text(encoding="utf-8")
                    raise ProcessError(why, returncode=1)

    return work


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table that a flow ends with, and fail if a job did."""
    rows = [
        (one.name, one.result, console.duration(one.seconds), one.why if one.result == "left out" else "")
        for one in outcomes
    ]
    if len(rows) > _WITHOUT_TABLE or any(one.result == "left out" for one in outcomes):
        console.table(("job", "result", "time", "why"), rows, title="Jobs")
    failed = [one.name for one in outcomes if one.result == "failed"]
    if failed:
        said = dict.fromkeys(one.why for one in outcomes if one.result == "failed" and one.why)
        words = f"{len(failed)} of {len(outcomes)} jobs failed: {', '.join(failed)}. "
        raise ProcessError(
            "\n".join([f"{words}The same command continues where this one stopped.", *said]), returncode=1
        )


def print_jobs(made: Sequence[jobs.Job]) -> None:
    """Print jobs as calls of nox."""
    for job in made:
        after = f"  (after {', '.join(job.needs)})" if job.needs else ""
        console.say(f"{job.name}{after}")
        for call in job.calls:
            console.result(shlex.join(["nox", *call.words]))
