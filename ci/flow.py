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
from functools import cache, partial
from importlib import import_module
from pathlib import Path, PurePath
from typing import Literal

from ci import jobs, pipeline
from ci.plan import outputs
from ci.plan.data import OwnStore
from ci.plan.origins import needs
from ci.plan.plan import plan as plan_of
from ci.promote.runs import is_sample
from ci.verbs import configure
from core import console, errors, files, process
from core.cli import FailureNote, Verb, dispatch, verb_parser
from core.cli.options import DEFAULT_STORE, FAILURE_FILE, ROOT, Common, common_from, environment
from core.errors import EnvironmentSetupError, FatalError, MissingInputError, ProcessError, UsageError
from core.run import LOCAL_RUN, is_local, records, this_platform
from core.run.plan import Plan, RocmOrigin
from core.run.records import edited_words
from pytorch_build.build.build import BORROWED, borrow, built
from pytorch_build.context import Context, context
from pytorch_build.lock.versions import python_tag
from pytorch_build.refs.torch_refs import OWN_TREES, torch_ref
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
    exit_code: int = 0


def run_ref(common: Common, *, python: str = "", rocm_layout: str = "", policy: str = "") -> None:
    """Run the sessions of one torch ref, and report on the run even where one fails."""
    require_pythons([python])
    chosen = context(common)
    selection = pipeline.steps_of_ref(chosen.ref, chosen.gpu_family)
    if rocm_layout and "build_rocm" in selection.left_out:
        raise UsageError(
            f"--rocm-layout is for build_rocm, which is left out: {selection.left_out['build_rocm']}.",
            hint="Leave the option out.",
        )

    for step_name, reason in selection.left_out.items():
        console.say(f"{step_name}: left out, {reason}")

    named = replace(common, torch_ref=chosen.ref.name, gpu_family=chosen.gpu_family)
    options = pipeline.FlowOptions(
        common=jobs.common_options(named),
        by_topic={
            "store": jobs.store_options(common),
            "rocm layout": (f"--rocm-layout={rocm_layout}",) if rocm_layout else (),
            "policy": (f"--policy={policy}",) if policy else (),
            "page": ("--brief",),
        },
    )
    run_steps(common, chosen.ref.name, selection.steps, options, python=python)


def run_steps(
    common: Common,
    job_name: str,
    steps: Sequence[pipeline.Step],
    options: pipeline.FlowOptions,
    *,
    python: str,
) -> None:
    """Run steps one after another, and report on the run even where one fails."""
    steps_to_run = steps
    if may_look(common):
        steps_to_run = pipeline.without_leading_up_to_date(
            steps, partial(look_at, options=options, python=python)
        )

    build_calls = job_calls([step for step in steps_to_run if step.job != "summary"], options, python)
    report_calls = job_calls([step for step in steps_to_run if step.job == "summary"], options, python)
    build_job = jobs.Job(name=job_name, stage="build_pytorch", calls=build_calls)
    report_job = jobs.Job(
        name="report", stage="summary", calls=report_calls, needs=(job_name,), tolerant=True
    )
    run_jobs([build_job, report_job], dry_run=common.dry_run, root=common.root)


def job_calls(
    steps: Sequence[pipeline.Step], options: pipeline.FlowOptions, python: str
) -> tuple[jobs.Call, ...]:
    """Return the calls of nox for steps, all for one Python."""
    return tuple(
        jobs.Call(sessions=call.sessions, python=python, posargs=call.options)
        for call in pipeline.nox_calls(steps, options)
    )


def may_look(common: Common) -> bool:
    """Return whether steps can be looked at in this process before nox runs them.

    Not where a write to a store cannot be foreseen; nor on GitHub, where each session has a log group.
    """
    if common.dry_run or "://" in common.store or console.mode() == "github":
        return False
    return Path.cwd() == common.root == ROOT


def look_at(
    step: pipeline.Step, options: pipeline.FlowOptions, python: str
) -> pipeline.UpToDate | pipeline.Pending:
    """Return whether a step has work to do.

    Its verb runs up to where the work would begin. What it prints is held back unless it has no work.
    """
    verb_words, programs = list(step.front_door[1:]), None
    if step.has_environment:
        environment_name = "-".join([step.name, *filter(None, python.split("."))])
        programs = ROOT / ".nox" / environment_name / ("Scripts" if os.name == "nt" else "bin")
        if not process.which("python", path=str(programs)) or "NOX_ENABLE_STALENESS_CHECK" in environment():
            return pipeline.Pending(reasons=("its environment is not there",))
        verb_words.append(f"--python={programs / 'python'}")
    if console.echoes():
        verb_words.append("--verbose")

    package = step.front_door[0]
    verbs = import_module(f"{package}.__main__").VERBS
    try:
        with process.looking(programs):
            console.detail(f"step {step.name}")
            dispatch(package, "", verbs, [*verb_words, *options.for_step(step)])
    except errors.InterruptedStageError:
        raise
    except process.WorkLeft:
        return pipeline.Pending(reasons=("its inputs have changed",))
    except Exception as problem:  # noqa: BLE001 - the session says what is wrong
        return pipeline.Pending(reasons=(str(problem),))
    return pipeline.UpToDate()


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


def run_trees(common: Common, changed: Changed, *, python: str = "") -> None:
    """Take changed trees to tested wheels, in a run of their own that borrows what it lacks."""
    require_pythons([python])
    run_id = common.run_id if common.run_id != LOCAL_RUN else changed.run_id
    if not is_local(run_id):
        raise UsageError(
            f"--run-id {run_id!r}: a run of others replaces no wheel, and each edit makes a new one.",
            hint=f"Begin the name with {LOCAL_RUN}-, as in --run-id {LOCAL_RUN}-{run_id}.",
        )
    # Builds leave their wheels in the default store, from which `upload` takes them to the one that is named.
    chosen = context(replace(common, run_id=run_id, store=DEFAULT_STORE))
    named = replace(chosen.common, torch_ref=chosen.ref.name, gpu_family=chosen.gpu_family)
    chosen = replace(chosen, common=named)
    lender_store = DEFAULT_STORE if changed.lender == LOCAL_RUN else common.store
    lender = replace(chosen, common=replace(named, run_id=changed.lender, store=lender_store))
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
    missing_steps = ["build_rocm", "check_rocm"] if rocm is None else []
    for component in pipeline.lent_components(chosen.ref, chosen.gpu_family, changed.trees):
        if not chosen.ref.projects[component].prebuilt:
            missing_steps += _borrowed(chosen, lender, tag, component)

    selection = pipeline.steps_of_changed_trees(
        chosen.ref, chosen.gpu_family, changed_components=changed.trees, missing_steps=missing_steps
    )
    torch_tree = changed.trees.get("torch")
    options = pipeline.FlowOptions(
        common=jobs.common_options(named),
        by_topic={
            "store": jobs.store_options(common),
            "policy": (f"--policy={changed.policy}",) if changed.policy else (),
            "rocm source": rocm or (),
            "trees": tuple(f"{OWN_TREES[component]}={tree}" for component, tree in changed.trees.items()),
            "tested tree": (f"--pytorch-dir={torch_tree}",) if torch_tree else (),
            "page": ("--brief",),
        },
    )
    run_steps(replace(named, store=common.store), chosen.ref.name, selection.steps, options, python=python)


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
    require_pythons(cell.python or "" for cell in plan.cells if cell.platform == platform)
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


def run_jobs(made: Sequence[jobs.Job], *, dry_run: bool = False, root: Path = ROOT) -> None:
    """Run jobs one after another, or print them."""
    if dry_run:
        print_jobs(made)
    else:
        require_pythons(call.python for job in made for call in job.calls)
        show(run_all(made, runner(root, together=False)))


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
        return Outcome(
            name=name,
            result="failed",
            why=problem.message,
            seconds=seconds,
            exit_code=problem.exit_code,
        )
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
            note_file = Path(folder, "failure.json")
            # with a matrix in the environment the noxfile has cells in the place of these sessions
            verbose = {"VERBOSE_OUTPUT": "1"} if console.echoes() else {}
            env = process.inherited(MATRIX=None, **verbose, **{FAILURE_FILE: str(note_file)})
            for call in job.calls:
                more = f" … {call.sessions[-1]}" if len(call.sessions) > 1 else ""
                title = f"{job.name}: {call.sessions[0]}{more}".removeprefix(f"{call.sessions[0]}: ")
                if not called(call, title, env):
                    failed.append(job.name)
                    raise failure_of(call, FailureNote.read(note_file))

    return work


def failure_of(call: jobs.Call, note: FailureNote | None) -> FatalError:
    """Return the error of a session that failed, in its own words and with its own exit code."""
    if note is None:
        why = "A session failed before its stage began. What nox said stands above.\n"
        return ProcessError(f"{why}again: nox {shlex.join(call.words)}", returncode=1)

    # On GitHub the session has annotated its words itself.
    error = ProcessError("" if console.mode() == "github" else note.message, returncode=1)
    error.exit_code = note.exit_code
    return error


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
        error = ProcessError(
            "\n".join([f"{words}The same command continues where this one stopped.", *said]), returncode=1
        )
        error.exit_code = next(one.exit_code for one in outcomes if one.result == "failed")
        raise error


def print_jobs(made: Sequence[jobs.Job]) -> None:
    """Print jobs as calls of nox."""
    for job in made:
        after = f"  (after {', '.join(job.needs)})" if job.needs else ""
        console.say(f"{job.name}{after}")
        for call in job.calls:
            console.result(shlex.join(["nox", *call.words]))
