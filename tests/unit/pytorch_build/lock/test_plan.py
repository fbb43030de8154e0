from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import SourceError
from core.run import Platform
from core.run.plan import PlannedJob
from pytorch_build.lock.collisions import refuse_collisions_of_jobs
from pytorch_build.lock.plan import complete_plan
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.lock.versions import wheel_version
from tests.kit.locks import COMMIT, locked_project, source_lock
from tests.kit.plans import make_plan, pytorch_job

AUDIO_SESSIONS = ("build_torch", "build_audio")
ROCM_JOB = pytorch_job("build_rocm", torch_ref="", python="", sessions=("build_rocm",))
LINUX_VERSION = "2.10+rocm7.linux"


class Locks:
    """Locks of every torch ref, with versions that tell the platform; notes which are asked for."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []

    def __call__(self, platform: Platform, torch_ref: str, gpu_family: str) -> SourceLock:
        self.requests.append((platform, torch_ref, gpu_family))
        projects = [
            locked_project(project, rocm_version=f"2.10+rocm7.{platform}", cpu_version="2.10+cpu")
            for project in ("torch", "audio", "vision")
        ]
        return source_lock(*projects, torch_ref=torch_ref)


# Versions of a plan's jobs


@pytest.mark.parametrize(
    ("facts", "versions"),
    [
        pytest.param({}, {"torch": LINUX_VERSION, "torchvision": LINUX_VERSION}, id="linux"),
        pytest.param(
            {"gpu_family": "cpu"}, {"torch": "2.10+cpu", "torchvision": "2.10+cpu"}, id="family cpu"
        ),
        pytest.param(
            {"platform": "windows"},
            {"torch": "2.10+rocm7.windows", "torchvision": "2.10+rocm7.windows"},
            id="windows",
        ),
        pytest.param(
            {"python": "3.13", "torch_ref": "main"},
            {"torch": LINUX_VERSION, "torchvision": LINUX_VERSION},
            id="other Python and ref",
        ),
    ],
)
def test_gives_a_job_the_versions_of_the_wheels_that_it_builds(
    facts: Mapping[str, Any], versions: Mapping[str, str]
) -> None:
    completed, _locks = complete_plan(make_plan(pytorch_job(**facts)), Locks())

    assert completed.jobs[0].versions == versions


def test_gives_a_test_the_versions_that_its_build_makes() -> None:
    tests = pytorch_job("test_pytorch", sessions=("test_smoke",))

    completed, _locks = complete_plan(make_plan(pytorch_job(), tests), Locks())

    assert completed.jobs[1].versions == completed.jobs[0].versions


def test_gives_no_versions_to_a_job_of_rocm() -> None:
    completed, _locks = complete_plan(make_plan(pytorch_job(), ROCM_JOB), Locks())

    assert completed.jobs[1].versions == {}


def test_locks_a_ref_once_for_each_platform_with_a_gpu_family() -> None:
    jobs = [
        pytorch_job(gpu_family="cpu"),
        pytorch_job(),
        pytorch_job(platform="windows"),
        pytorch_job(python="3.13", torch_ref="main"),
    ]
    locks = Locks()

    complete_plan(make_plan(*jobs), locks)

    assert sorted(locks.requests) == [
        ("linux", "main", "gfx94X-dcgpu"),
        ("linux", "nightly", "gfx94X-dcgpu"),
        ("windows", "nightly", "gfx94X-dcgpu"),
    ]


def test_locks_a_ref_that_is_built_for_family_cpu_alone_with_that() -> None:
    locks = Locks()

    complete_plan(make_plan(pytorch_job(gpu_family="cpu")), locks)

    assert locks.requests == [("linux", "nightly", "cpu")]


def test_locks_nothing_for_a_plan_without_pytorch() -> None:
    locks = Locks()

    _completed, found_locks = complete_plan(make_plan(ROCM_JOB), locks)

    assert found_locks == {"linux": {}, "windows": {}}
    assert locks.requests == []


def test_writes_digests_of_locks_into_the_plan() -> None:
    jobs = make_plan(pytorch_job())

    completed, locks = complete_plan(jobs, Locks())

    assert completed.locks["linux"]["nightly"] == locks["linux"]["nightly"].digest()
    assert completed.digest() != jobs.digest()


def test_names_a_project_that_a_job_builds_and_no_lock_has() -> None:
    with pytest.raises(SourceError, match="apex"):
        complete_plan(make_plan(pytorch_job(sessions=("build_apex",))), Locks())


# Wheels of one name


def audio_at(commit: str = COMMIT, version: str = "2.11+rocm7") -> LockedProject:
    """Return an audio of a commit and version."""
    return locked_project("audio", commit=commit, base_version="2.11", rocm_version=version)


def lock_two_torches(_platform: Platform, torch_ref: str, _gpu_family: str) -> SourceLock:
    """Return a lock whose torch is another one for each ref, and whose audio is the same."""
    digit = {"2.12": "0", "2.13": "1"}[torch_ref]
    torch = locked_project("torch", commit=digit * 40, rocm_version=f"2.1{digit}+rocm7")
    return source_lock(torch, audio_at(), torch_ref=torch_ref)


def test_rejects_one_name_for_two_wheels_and_names_both_jobs() -> None:
    jobs = [pytorch_job(name=name, torch_ref=name, sessions=AUDIO_SESSIONS) for name in ("2.12", "2.13")]

    with pytest.raises(SourceError) as caught:
        complete_plan(make_plan(*jobs), lock_two_torches)

    # They differ in the torch that audio is built against.
    assert caught.value.message.splitlines()[1:] == [
        "torchaudio 2.11+rocm7 for Python 3.12 in gfx94X-dcgpu:",
        f"  2.12: audio {COMMIT[:12]} of o, torch {'0' * 12} of o, ROCm 7",
        f"  2.13: audio {COMMIT[:12]} of o, torch {'1' * 12} of o, ROCm 7",
    ]
    assert "torch_in_version" in caught.value.hint


@pytest.mark.parametrize(
    "facts",
    [{"python": "3.13"}, {"platform": "windows"}, {"artifact_group": "gfx94X-dcgpu-asan"}],
    ids=["Python", "platform", "folder"],
)
def test_accepts_wheels_of_one_version_that_never_meet(facts: Mapping[str, Any]) -> None:
    first = pytorch_job(torch_ref="2.12", sessions=AUDIO_SESSIONS)
    second = pytorch_job(torch_ref="2.13", sessions=AUDIO_SESSIONS, **facts)

    completed, _locks = complete_plan(make_plan(first, second), lock_two_torches)

    audio_versions = [cell.versions["torchaudio"] for cell in completed.jobs]
    assert audio_versions == ["2.11+rocm7", "2.11+rocm7"]


# Digits of the commits of audio and torch, torch's minor version, and whether audio's version names it.
REFS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.sampled_from("12"), st.booleans()),
    min_size=1,
    max_size=4,
)


@given(REFS)
def test_rejects_exactly_names_that_several_inputs_make(refs: Sequence[tuple[str, str, str, bool]]) -> None:
    locks: dict[str, SourceLock] = {}
    wheels: set[tuple[str, str, str]] = set()
    jobs: list[PlannedJob] = []
    for number, (audio_digit, torch_digit, minor, is_named) in enumerate(refs):
        torch_ref = f"ref-{number}"
        version = wheel_version(
            "2.11.0",
            "+rocm7",
            release_type="ci",
            commit="",
            torch=f"2.1{minor}.0" if is_named else None,
        )
        torch = locked_project("torch", commit=torch_digit * 40, base_version=f"2.1{minor}")
        audio = audio_at(audio_digit * 40, version)
        locks[torch_ref] = source_lock(torch, audio, torch_ref=torch_ref)
        job = pytorch_job(torch_ref=torch_ref, sessions=("build_audio",))
        jobs.append(job)
        wheels.add((version, audio_digit, torch_digit))

    versions = {version for version, _audio, _torch in wheels}
    if len(versions) == len(wheels):
        refuse_collisions_of_jobs(jobs, locks)
    else:
        with pytest.raises(SourceError, match="torchaudio"):
            refuse_collisions_of_jobs(jobs, locks)
