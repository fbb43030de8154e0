"""What one machine runs for a plan, and what the workflows run for it, in the same words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ci.jobs import Job
from tests.kit.simulated_runs import SimulatedJob, SimulatedStep

KINDS = (
    "build_rocm",
    "build_pytorch",
    "stage",
    "test_rocm",
    "test_pytorch",
    "test_torch",
    "test_report",
    "promote",
    "summary",
)
TESTS = {"test_rocm", "test_pytorch", "test_torch"}

# The variables of workflows that stand for an option, where sessions read them.
OPTIONS_OF_VARIABLES = {
    "CI_CONFIG": "config-file",
    "RELEASE_TYPE": "release-type",
    "ROCM_PACKAGE_INDEX_URL": "rocm-index-url",
    "STORE": "store",
    "TORCH_TESTS": "config",
    "TORCH_TESTS_PART": "shard",
}
# Options that every session takes, and those that only some of them do something with.
COMMON_OPTIONS = {"config-file", "gpu-family", "build-variant", "torch-ref", "run-id", "release-type"}
OPTIONS_OF_SESSIONS: Mapping[str, set[str]] = {
    "fetch_artifacts": {"artifact-run-id", "artifact-repository", "artifact-store", "artifact-digest"},
    "build_rocm": {"version"},
    "check_wheels": {"rocm"},
    "build_torch": {"rocm-index-url"},
    "upload": {"store"},
    "provenance": {"store"},
    "stage": {"store", "distribution-store", "platform"},
    "test_rocm": {"distribution-store", "staged"},
    "test_smoke": {"distribution-store", "rocm-index-url", "staged"},
    "test_torch": {"config", "distribution-store", "rocm-index-url", "shard", "staged"},
    "test_report": {"store"},
    "promote": {"store", "distribution-store", "platform", "torch-version", "pythons"},
    "report": {"store"},
}
# Common options that a session does nothing with: artifacts are of every ref, a set is promoted from staging.
IGNORED_OPTIONS: Mapping[str, set[str]] = {"fetch_artifacts": {"torch-ref"}, "promote": {"run-id"}}


@dataclass(frozen=True, kw_only=True, order=True)
class Call:
    """A session of nox with the options that decide what it does."""

    session: str
    python: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """A job of a plan: on GitHub, with those that publish what it made."""

    kind: str
    calls: tuple[Call, ...]


def call_of(session: str, python: str, options: Mapping[str, str]) -> Call:
    """Return a session with those of its options that count and that are not what they are by default."""
    names = COMMON_OPTIONS | OPTIONS_OF_SESSIONS.get(session, set())
    names -= IGNORED_OPTIONS.get(session, set())
    counting: list[tuple[str, str]] = []
    for name, value in sorted(options.items()):
        if name in names and value and (name, value) != ("build-variant", "release"):
            counting.append((name, value))
    return Call(session=session, python=python, options=tuple(counting))


def split_arguments(arguments: Sequence[str]) -> tuple[Sequence[str], str, Mapping[str, str]]:
    """Return the sessions, the Python and the options of a call of nox, by what follows ``nox -s``."""
    position = arguments.index("--")
    sessions = [*arguments[:position]]
    python = ""
    if "-P" in sessions:
        python = sessions[sessions.index("-P") + 1]
        sessions = sessions[: sessions.index("-P")]

    options: dict[str, str] = {}
    for argument in arguments[position + 1 :]:
        name, equals_sign, value = argument.removeprefix("--").partition("=")
        options[name] = value if equals_sign else "yes"
    return sessions, python, options


def calls_of_arguments(arguments: Sequence[str], defaults: Mapping[str, str]) -> Sequence[Call]:
    """Return the calls that follow ``nox -s``; options go over what variables say."""
    sessions, python, options = split_arguments(arguments)
    return [call_of(session, python, {**defaults, **options}) for session in sessions]


# --- One machine ------------------------------------------------------------------------------


def unit_of_job(job: Job) -> Unit:
    """Return a job of a flow."""
    calls: list[Call] = []
    for call in job.calls:
        calls += calls_of_arguments(call.words[1:], {})
    return Unit(kind=job.kind, calls=without_python_of_tools(calls))


def without_python_of_tools(calls: Iterable[Call]) -> tuple[Call, ...]:
    """Leave the Python out where sessions have no environment of it, so that any does."""
    with_environment = {"test_rocm", "test_smoke", "test_torch"}
    comparable_calls: list[Call] = []
    for call in calls:
        has_environment = call.session in with_environment or call.session.startswith("build_")
        python = call.python if has_environment and call.session != "build_rocm" else ""
        comparable_calls.append(Call(session=call.session, python=python, options=call.options))
    return tuple(comparable_calls)


# --- The workflows ----------------------------------------------------------------------------


def units_of_run(jobs: Sequence[SimulatedJob]) -> Sequence[Unit]:
    """Return the jobs of a simulated run that a plan has, on Linux."""
    calls_by_unit: dict[tuple[str, str], list[Call]] = {}
    for job in jobs:
        if " > windows " in job.path:
            continue
        for step in job.steps:
            for call in calls_of_step(step):
                calls_by_unit.setdefault(unit_name(job, call), []).append(call)

    units: list[Unit] = []
    for (kind, _path), calls in calls_by_unit.items():
        if kind in TESTS:
            # One machine keeps what tests leave where it is.
            tests = [call for call in calls if call.session != "upload"]
            units.append(Unit(kind=kind, calls=without_python_of_tools(tests)))
        elif kind in KINDS:
            units.append(Unit(kind=kind, calls=without_python_of_tools(calls)))
    return units


def calls_of_step(step: SimulatedStep) -> Sequence[Call]:
    """Return the calls of a step, but for those of CI alone, which read the plan and tell how a run ended."""
    arguments = step.words
    if "--platform=windows" in arguments or "--" not in arguments:
        return []
    if "plan_job" in arguments or "notify" in arguments:
        return []
    defaults = {option: step.variables.get(name, "") for name, option in OPTIONS_OF_VARIABLES.items()}
    return calls_of_arguments(arguments[2:], defaults)


def unit_name(job: SimulatedJob, call: Call) -> tuple[str, str]:
    """Return the kind of a call's unit, and the part of its job's path that tells it from others."""
    segments = job.path.split(" > ")
    for position, segment in enumerate(segments):
        kind = segment.partition(" ")[0]
        if kind in KINDS:
            path = " > ".join(segments[: position + 1])
            # The last job of a run of CI reports on tests, too.
            return (call.session if call.session == "test_report" else kind), path
    return segments[1], job.path
