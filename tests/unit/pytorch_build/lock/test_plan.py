import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import SourceError
from core.run.plan import Cell
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.lock.stored import complete, outputs, refuse_collisions
from pytorch_build.lock.versions import wheel_version
from tests.kit import plans
from tests.kit.plans import plan

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cell(stage: str = "build_pytorch", **facts: Any) -> Cell:
    built = ("build_torch", "build_vision", "check_wheels")
    return plans.cell(stage, **{"torch_ref": "nightly", "sessions": built, **facts})


class Locks:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    def __call__(self, platform: Any, torch_ref: str, gpu_family: str) -> SourceLock:
        self.asked.append((platform, torch_ref, gpu_family))
        versions: Any = {"rocm": f"2.10+rocm7.{platform}", "cpu": "2.10+cpu"}
        projects = {
            name: LockedProject(
                project=name, origin="o", ref="r", commit=COMMIT, base_version="2.10", versions=versions
            )
            for name in ("torch", "audio", "vision")
        }
        return SourceLock(torch_ref=torch_ref, release_type="ci", rocm_version="7", projects=projects)


def test_every_cell_gets_the_versions_of_the_wheels_that_its_job_builds() -> None:
    built = (cell(), cell(gpu_family="cpu"), cell(platform="windows"), cell(python="3.13", torch_ref="main"))
    tested = cell("test_pytorch", sessions=("test_smoke",))
    rocm = cell("build_rocm", torch_ref="", python="", sessions=("build_rocm",))
    locks = Locks()
    completed, found = complete(plan(*built, tested, rocm), locks)
    assert locks.asked == [
        ("linux", "nightly", "gfx94X-dcgpu"),
        ("linux", "main", "gfx94X-dcgpu"),
        ("windows", "nightly", "gfx94X-dcgpu"),
    ]
    versions = [one.versions for one in completed.cells]
    gpu = "2.10+rocm7.linux"
    assert versions[0] == versions[3] == versions[4] == {"torch": gpu, "torchvision": gpu}
    assert versions[1] == {"torch": "2.10+cpu", "torchvision": "2.10+cpu"}
    assert versions[2]["torch"] == "2.10+rocm7.windows"
    assert versions[5] == {}
    assert completed.locks["linux"]["main"] == found["linux"]["main"].digest()
    assert completed.digest() != plan(*built, tested, rocm).digest()
    # a ref that is built without ROCm alone is locked so, and a plan without PyTorch needs no lock
    locks = Locks()
    assert complete(plan(rocm), locks)[1] == {"linux": {}, "windows": {}}
    complete(plan(cell(gpu_family="cpu")), locks)
    assert locks.asked == [("linux", "nightly", "cpu")]
    with pytest.raises(SourceError, match="does not hold apex"):
        complete(plan(cell(sessions=("build_apex",))), locks)


class TwoRefs(Locks):
    """Gives torch of each ref a commit and version of its own; the audio of each as a test says."""

    def __init__(self, audio: dict[str, LockedProject]) -> None:
        super().__init__()
        self.audio = audio

    def __call__(self, platform: Any, torch_ref: str, gpu_family: str) -> SourceLock:
        lock = super().__call__(platform, torch_ref, gpu_family)
        digit = str(sorted(self.audio).index(torch_ref))
        versions: Any = {"rocm": f"2.1{digit}+rocm7", "cpu": f"2.1{digit}+cpu"}
        torch = lock.projects["torch"].model_copy(update={"commit": digit * 40, "versions": versions})
        return lock.model_copy(update={"projects": {"torch": torch, "audio": self.audio[torch_ref]}})


def audio_of(version: str, commit: str = COMMIT) -> LockedProject:
    versions: Any = {"rocm": f"{version}rocm7", "cpu": f"{version}cpu"}
    return LockedProject(
        project="audio", origin="o", ref="r", commit=commit, base_version="2.11", versions=versions
    )


AUDIO = ("build_torch", "build_audio")


def test_one_name_for_two_wheels_is_refused_with_both_cells_named() -> None:
    built = [cell(name=name, torch_ref=name, sessions=AUDIO) for name in ("2.12", "2.13")]
    locks = TwoRefs({"2.12": audio_of("2.11+"), "2.13": audio_of("2.11+")})
    with pytest.raises(SourceError) as caught:
        complete(plan(*built), locks)
    assert str(caught.value.message).splitlines()[1:] == [
        "torchaudio 2.11+rocm7 for Python 3.12 in gfx94X-dcgpu:",
        f"  2.12: audio {COMMIT[:12]} of o, torch {'0' * 12} of o, ROCm 7",
        f"  2.13: audio {COMMIT[:12]} of o, torch {'1' * 12} of o, ROCm 7",
    ]
    assert "torch_in_version" in caught.value.hint


def test_other_folders_pythons_platforms_and_versions_are_other_names() -> None:
    first = cell(torch_ref="2.12", sessions=AUDIO)
    same = TwoRefs({"2.12": audio_of("2.11+"), "2.13": audio_of("2.11+")})
    for other in ({"python": "3.13"}, {"platform": "windows"}, {"artifact_group": "gfx94X-dcgpu-asan"}):
        complete(plan(first, cell(torch_ref="2.13", sessions=AUDIO, **other)), same)


def test_each_lock_is_the_line_that_a_job_takes() -> None:
    completed, locks = complete(plan(cell()), Locks())
    written = outputs(completed, locks)
    line = json.loads(written["linux_source_locks"])["nightly"]
    assert SourceLock.from_compact(line) == locks["linux"]["nightly"]
    assert json.loads(written["windows_source_locks"]) == {}
    assert json.loads(written["linux_build_pytorch_matrix"])[0]["torch_version"] == "2.10+rocm7.linux"
    assert written["plan_digest"] == completed.digest()


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.sampled_from("cd"), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_exactly_names_with_several_makers_are_refused(refs: Sequence[tuple[str, str, str, bool]]) -> None:
    locks, wheels = {}, set()
    for number, (audio, minor, torch, named) in enumerate(refs):
        version = wheel_version(
            "2.11.0", "+rocm7", release_type="ci", commit="", torch=f"2.1{minor}.0" if named else ""
        )
        projects = {
            "torch": LockedProject(
                project="torch", origin="o", ref="r", commit=torch * 40, base_version=f"2.1{minor}"
            ),
            "audio": audio_of("", audio * 40).model_copy(update={"versions": {"rocm": version}}),
        }
        name = f"ref-{number}"
        locks[name] = SourceLock(torch_ref=name, release_type="ci", rocm_version="7", projects=projects)
        wheels.add((version, audio, torch))
    cells = [cell(torch_ref=name, sessions=("build_audio",)) for name in locks]
    if len({version for version, _, _ in wheels}) == len(wheels):
        refuse_collisions(cells, locks)
    else:
        with pytest.raises(SourceError, match="different wheels with the same name"):
            refuse_collisions(cells, locks)
