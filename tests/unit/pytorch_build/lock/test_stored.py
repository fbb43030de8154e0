import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import DataError, MissingInputError, SourceError, StoreError, UsageError
from core.packages.options import SourceOptions
from pytorch_build.context import Context
from pytorch_build.lock import stored
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import TorchRef
from pytorch_build.sdk import RocmOptions
from tests.kit.builds import LocalRun
from tests.kit.locks import Upstream, locked_commits
from tests.kit.repos import commit_files, run_git

# Where torch's tree says that the pinned audio is; a user's mirror leads to it.
AUDIO_FORK = "https://example.invalid/audio-fork"
NO_ROCM = RocmOptions()
ROCM = RocmOptions(source=SourceOptions(version="7.10.0"))
OTHER_ROCM = RocmOptions(source=SourceOptions(version="7.11.0"))


@dataclass(frozen=True, kw_only=True)
class UpstreamCommits:
    """Repositories that tests copy, and their commits."""

    folder: Path
    audio_fork: str
    audio: str
    vision: str
    torch: str


@dataclass(kw_only=True)
class World(Upstream):
    """Upstream repositories whose torch pins a fork's audio, the ref over them, and runs that build it."""

    commits: UpstreamCommits

    def pin_audio(self, commit: str) -> str:
        """Commit a torch that pins another audio; return torch's commit."""
        return self.commit("torch", {"related_commits": related_commits(commit)})

    def context(
        self,
        *,
        cpu: bool = False,
        ref: TorchRef | None = None,
        run_id: str = "local",
        release_type: str = "ci",
        dry_run: bool = False,
    ) -> Context:
        """Return what a verb of a run works on."""
        common = Common(
            root=self.root / "checkout",
            torch_ref="mine",
            run_id=run_id,
            release_type=release_type,
            dry_run=dry_run,
        )
        return Context(
            common=common,
            ref=ref or self.ref,
            gpu_family="cpu" if cpu else "gfx942",
            gpu_targets=() if cpu else ("gfx942",),
        )

    def lock(
        self,
        context: Context | None = None,
        rocm: RocmOptions = ROCM,
        *,
        update: bool = False,
        explicit_refs: Mapping[str, str] | None = None,
        require_related_commit: bool = False,
    ) -> SourceLock:
        """Return the lock of a run, by default the local one with ROCm."""
        return stored.ensure_source_lock(
            context or self.context(),
            rocm,
            update=update,
            explicit_refs=explicit_refs,
            require_related_commit=require_related_commit,
        )


def related_commits(commit: str, origin: str = AUDIO_FORK) -> str:
    """Return the file in which torch pins an audio."""
    return f"ubuntu|p|torchaudio|main|{commit}|{origin}\n"


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> UpstreamCommits:
    """Return repositories that tests copy."""
    folder = tmp_path_factory.mktemp("upstream")
    audio_fork = commit_files(folder / "audio-fork", {"version.txt": "2.9.0\n"})
    torch_files = {
        "version.txt": "2.10.0a0\n",
        "related_commits": related_commits(audio_fork),
    }
    return UpstreamCommits(
        folder=folder,
        audio_fork=audio_fork,
        audio=commit_files(folder / "audio", {"version.txt": "2.10.0a0\n"}),
        vision=commit_files(folder / "vision", {"version.txt": "0.25.0a0\n"}),
        torch=commit_files(folder / "torch", torch_files),
    )


@pytest.fixture
def world(tmp_path: Path, commits: UpstreamCommits, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return repositories of this test's own, which a user's settings of git lead to."""
    shutil.copytree(commits.folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    mirror = f'[url "{tmp_path}/"]\n\tinsteadOf = https://example.invalid/\n'
    (tmp_path / ".gitconfig").write_text(f'{mirror}[protocol "file"]\n\tallow = always\n')

    world = World(root=tmp_path, commits=commits)
    sources = {
        "torch": {},
        "audio": {"pin": "related_commits"},
        "vision": {},
    }
    world.set_ref(("torch", "audio"), sources)
    return world


# Origins that nobody here has named


def with_audio_from(lock: SourceLock, origin: str) -> SourceLock:
    """Return a lock whose audio comes from another origin."""
    audio = lock.project("audio").model_copy(update={"origin": origin})
    return lock.model_copy(update={"projects": {**lock.projects, "audio": audio}})


each_unsafe_origin = pytest.mark.parametrize(
    "origin", ["file:///srv/a", "/srv/a", "../a", "fd::0", "ext::sh -c true", "http://a/b"]
)


@each_unsafe_origin
def test_rejects_a_stored_lock_with_an_origin_that_is_not_encrypted(run: LocalRun, origin: str) -> None:
    run.put_lock(with_audio_from(run.lock(), origin))

    with pytest.raises(SourceError) as caught:
        stored.stored_lock(run.context())

    names = ("source-lock-sample.json", "projects.audio.origin", repr(origin))
    assert [name for name in names if name not in caught.value.message] == []


@pytest.mark.processes
def test_completes_no_stored_lock_with_an_origin_that_is_not_encrypted(world: World) -> None:
    context = world.context()
    lock = with_audio_from(world.lock(), "/srv/a")
    key = context.common.outputs.source_lock_key("mine")
    context.common.open_store().put_bytes(key, lock.model_dump_json().encode())

    with pytest.raises(SourceError, match="'/srv/a'"):
        world.lock()


@each_unsafe_origin
def test_rejects_a_passed_lock_with_an_origin_that_is_not_encrypted(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    monkeypatch.setenv(stored.PASSED, with_audio_from(run.lock(), origin).compact())

    with pytest.raises(SourceError, match=f"^{stored.PASSED}: ") as caught:
        stored.stored_lock(run.context())

    assert repr(origin) in caught.value.message


@each_unsafe_origin
def test_accepts_an_origin_that_is_not_encrypted_from_the_user(run: LocalRun, origin: str) -> None:
    lock = run.put_lock(with_audio_from(run.lock(), origin))
    context = run.context()
    sources = dict(context.ref.projects)
    sources["audio"] = replace(sources["audio"], origin=origin, has_own_origin=True)
    ref = replace(context.ref, projects=sources)

    assert stored.stored_lock(replace(context, ref=ref)) == lock


@pytest.mark.processes
@pytest.mark.parametrize("origin", ["/srv/a", "ext::sh -c true"])
def test_rejects_a_pin_with_an_origin_that_is_not_encrypted(world: World, origin: str) -> None:
    world.commit("torch", {"related_commits": related_commits(world.commits.audio_fork, origin)})

    with pytest.raises(SourceError, match="audio") as caught:
        world.lock()

    assert "related_commits" in caught.value.message
    assert repr(origin) in caught.value.message


def test_makes_no_sample_for_origins_of_real_repositories(run: LocalRun) -> None:
    mirrors = {"https://github.com/": "/mirror/"}

    origins = stored.prepare_origins(run.common(), run.context(ref="nightly").ref, mirrors)

    assert dict(origins.mirrors) == mirrors
    assert not origins.repositories
    assert not (run.root / ".cache").exists()


# When a lock is kept


@pytest.mark.processes
def test_keeps_a_lock_while_upstream_moves(world: World) -> None:
    lock = world.lock()
    world.commit("torch", {"new.py": ""})

    assert world.lock() == lock
    assert locked_commits(lock) == {"torch": world.commits.torch, "audio": world.commits.audio_fork}


@pytest.mark.processes
def test_updates_a_lock_where_a_user_does(world: World) -> None:
    world.lock()
    newer_commit = world.commit("torch", {"new.py": ""})

    updated_lock = world.lock(update=True)

    assert updated_lock.project("torch").commit == newer_commit
    assert stored.stored_lock(world.context()) == updated_lock


@pytest.mark.processes
def test_stores_no_lock_in_a_dry_run(world: World) -> None:
    world.lock(world.context(dry_run=True))

    assert stored.stored_lock(world.context()) is None


@pytest.mark.processes
def test_locks_versions_of_another_release_type_anew(world: World) -> None:
    first_lock = world.lock()

    lock = world.lock(world.context(release_type="dev"))

    assert f"git{world.commits.torch[:8]}" in lock.version("torch", gpu=True)
    assert locked_commits(lock) == locked_commits(first_lock)


@pytest.mark.processes
def test_adds_a_version_of_rocm_without_other_commits(world: World) -> None:
    cpu_lock = world.lock(world.context(cpu=True), NO_ROCM)
    assert cpu_lock.rocm_version == ""
    world.pin_audio(world.commit("audio-fork", {"newer.py": ""}))

    completed_lock = world.lock()

    assert completed_lock.version("audio", gpu=True) == "2.9.0+rocm7.10.0"
    for name, project in cpu_lock.projects.items():
        # Where a pin led to stays, even in another repository than the ref's.
        kept_project = completed_lock.project(name)
        assert kept_project.model_copy(update={"versions": project.versions}) == project


@pytest.mark.processes
def test_keeps_versions_of_rocm_through_a_build_for_family_cpu(world: World) -> None:
    lock = world.lock()

    assert world.lock(world.context(cpu=True), NO_ROCM) == lock


@pytest.mark.processes
def test_replaces_the_version_of_rocm_in_the_local_run(world: World) -> None:
    first_lock = world.lock()
    world.commit("torch", {"new.py": ""})

    lock = world.lock(rocm=OTHER_ROCM)

    assert lock.rocm_version == "7.11.0"
    assert locked_commits(lock) == locked_commits(first_lock)


@pytest.mark.processes
def test_rejects_another_version_of_rocm_in_a_run_that_others_use(world: World) -> None:
    world.lock(world.context(run_id="77"))

    with pytest.raises(MissingInputError) as caught:
        world.lock(world.context(run_id="77"), OTHER_ROCM)

    names = ("run 77", "mine", "gfx942", "7.11.0")
    assert [name for name in names if name not in caught.value.message] == []


@pytest.mark.processes
def test_adds_a_component_that_a_user_names_and_keeps_it(world: World) -> None:
    first_lock = world.lock()
    world.commit("torch", {"new.py": ""})

    widened_lock = world.lock(stored.with_components(world.context(), "vision"))

    expected_commits = {**locked_commits(first_lock), "vision": world.commits.vision}
    assert locked_commits(widened_lock) == expected_commits
    assert world.lock() == widened_lock
    assert locked_commits(world.lock(rocm=OTHER_ROCM)) == expected_commits


# Another source of a project


@pytest.mark.processes
@pytest.mark.parametrize("change", ["origin", "ref"])
def test_locks_a_project_anew_whose_origin_or_ref_has_changed(world: World, change: str) -> None:
    components = ("torch", "audio", "vision")
    first_ref = replace(world.ref, components=components)
    first_lock = world.lock(world.context(ref=first_ref))
    fork_commit = world.commit("vision-fork", {"version.txt": "0.26.0\n"})
    run_git(world.root / "vision", "branch", "other")
    world.commit("torch", {"new.py": ""})

    if change == "origin":
        ref = world.with_source("vision", origin=str(world.root / "vision-fork"))
        expected_source = (fork_commit, "main")
    else:
        ref = world.with_source("vision", ref="other")
        expected_source = (world.commits.vision, "other")
    ref = replace(ref, components=components)
    lock = world.lock(world.context(ref=ref))

    vision = lock.project("vision")
    assert (vision.commit, vision.ref) == expected_source
    assert lock.project("torch") == first_lock.project("torch")


@pytest.mark.processes
def test_takes_a_users_own_origin_in_the_place_of_a_pins(world: World) -> None:
    world.lock()
    run_git(world.root, "clone", "--quiet", "audio-fork", "audio-mine")
    ref = world.with_source("audio", origin=str(world.root / "audio-mine"), has_own_origin=True)

    lock = world.lock(world.context(ref=ref))

    assert lock.project("audio").origin == str(world.root / "audio-mine")


@pytest.mark.processes
def test_takes_the_pins_of_another_torch(world: World) -> None:
    world.lock()
    newer_audio = world.commit("audio-fork", {"newer.py": ""})
    world.pin_audio(newer_audio)
    run_git(world.root / "torch", "branch", "newer")

    lock = world.lock(world.context(ref=world.with_source("torch", ref="newer")))

    assert lock.project("audio").commit == newer_audio


@pytest.mark.processes
def test_replaces_a_locked_torch_by_a_prebuilt_one_and_back(world: World) -> None:
    world.lock()
    ref = world.with_source("torch", prebuilt="torch==2.13.0")
    projects = dict(ref.projects)
    projects.pop("audio")
    prebuilt_ref = replace(ref, components=("vision",), projects=projects)

    prebuilt_context = world.context(ref=prebuilt_ref, cpu=True)
    prebuilt_lock = world.lock(prebuilt_context, NO_ROCM)

    assert prebuilt_lock.project("torch").prebuilt == "torch==2.13.0"
    assert "audio" not in prebuilt_lock.projects
    assert world.lock().project("torch").commit == world.commits.torch


# Refs that a user names


@pytest.fixture
def chosen_refs(world: World) -> dict[str, str]:
    """Return a branch of torch's and a commit of audio's that a user names."""
    torch = world.root / "torch"
    run_git(torch, "checkout", "--quiet", "-b", "mine")
    world.commit("torch", {"mine.py": ""})
    run_git(torch, "checkout", "--quiet", "main")
    # torch's pin says that audio is in its fork.
    run_git(world.root / "audio-fork", "fetch", "--quiet", "../audio", "main:from-audio")
    return {"torch": "mine", "audio": world.commits.audio}


@pytest.mark.processes
def test_keeps_refs_that_a_user_named_for_later_steps(world: World, chosen_refs: dict[str, str]) -> None:
    lock = world.lock(update=True, explicit_refs=chosen_refs)

    chosen_commit = run_git(world.root / "torch", "rev-parse", "mine")
    assert locked_commits(lock) == {"torch": chosen_commit, "audio": world.commits.audio}
    assert world.lock() == lock
    assert locked_commits(world.lock(rocm=OTHER_ROCM)) == locked_commits(lock)


@pytest.mark.processes
def test_forgets_refs_that_a_user_named_at_an_update(world: World, chosen_refs: dict[str, str]) -> None:
    world.lock(update=True, explicit_refs=chosen_refs)

    lock = world.lock(update=True)

    assert locked_commits(lock) == {"torch": world.commits.torch, "audio": world.commits.audio_fork}


# Required pins


@pytest.mark.processes
def test_serves_a_required_pin_from_the_lock_of_a_run(world: World) -> None:
    lock = world.lock(world.context(run_id="77"))

    assert world.lock(world.context(run_id="77"), require_related_commit=True) == lock


@pytest.mark.processes
def test_names_the_project_without_a_required_pin(world: World) -> None:
    ref = replace(world.with_source("vision", pin="related_commits"), components=("torch", "vision"))
    assert world.lock(world.context(ref=ref)).project("vision").commit == world.commits.vision

    with pytest.raises(SourceError, match="vision"):
        world.lock(world.context(ref=ref), require_related_commit=True)


# Runs


@pytest.mark.processes
def test_locks_each_run_on_its_own(world: World) -> None:
    first_lock = world.lock(world.context(run_id="77"))
    world.commit("torch", {"new.py": ""})

    assert world.lock(world.context(run_id="78")) != first_lock
    assert world.lock(world.context(run_id="77")) == first_lock


@pytest.mark.processes
def test_locks_a_run_that_others_use_never_twice(world: World) -> None:
    lock = world.lock(world.context(run_id="77"))
    world.commit("torch", {"new.py": ""})

    with pytest.raises(StoreError, match="source-lock-mine"):
        world.lock(world.context(run_id="77"), update=True)

    assert stored.stored_lock(world.context(run_id="77")) == lock


# Two torch refs in one run


def second_ref(world: World) -> TorchRef:
    """Return a torch ref whose vision is a fork's of the same version."""
    world.commit("vision-fork", {"version.txt": "0.25.0a0\n"})
    ref = world.with_source("vision", origin=str(world.root / "vision-fork"))
    return replace(ref, name="second", components=("torch", "vision"))


@pytest.mark.processes
def test_refuses_a_second_ref_whose_wheels_would_replace_those_of_the_first(world: World) -> None:
    first_ref = replace(world.ref, components=("torch", "vision"))
    world.lock(world.context(ref=first_ref))

    context = world.context(ref=second_ref(world))
    with pytest.raises(SourceError, match="mine and second") as caught:
        world.lock(context)

    assert "torchvision" in caught.value.message
    assert stored.stored_lock(context) is None


@pytest.mark.processes
@pytest.mark.parametrize("run_id", ["local", "77"])
def test_locks_a_second_ref_beside_the_first_where_its_wheels_have_other_names_or_its_run_another_id(
    world: World, run_id: str
) -> None:
    first_ref = replace(world.ref, components=("torch", "vision"))
    world.lock(world.context(ref=first_ref))
    ref = second_ref(world)
    if run_id == "local":
        world.commit("vision-fork", {"version.txt": "0.26.0\n"})

    context = world.context(ref=ref, run_id=run_id)
    lock = world.lock(context)

    assert stored.stored_lock(context) == lock


@pytest.mark.processes
def test_leaves_refs_of_one_plan_to_the_plan(world: World) -> None:
    first_ref = replace(world.ref, components=("torch", "vision"))
    world.lock(world.context(ref=first_ref))
    context = world.context(ref=second_ref(world))

    lock = stored.ensure_source_lock(context, ROCM, planned_refs={"mine", "second"})

    assert stored.stored_lock(context) == lock


# A lock that a job passes


def test_takes_a_passed_lock_before_the_stored_one(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_lock = run.put_lock()
    passed_lock = run.lock(rocm_version="7.1")
    assert stored.stored_lock(run.context()) == stored_lock

    monkeypatch.setenv(stored.PASSED, passed_lock.compact())

    assert stored.stored_lock(run.context()) == passed_lock


def test_rejects_a_passed_lock_that_was_changed(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    changed_line = run.lock().compact().replace("2.10.0a0", "2.11.0a0")
    monkeypatch.setenv(stored.PASSED, changed_line)

    with pytest.raises(DataError, match=stored.PASSED):
        stored.stored_lock(run.context())


def test_rejects_a_passed_lock_of_another_ref(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stored.PASSED, run.lock().compact())

    with pytest.raises(UsageError, match="sample, not nightly"):
        stored.stored_lock(run.context(ref="nightly"))


def test_names_a_stored_lock_that_is_damaged(run: LocalRun) -> None:
    key = "local-linux/manifests/source-lock-sample.json"
    run.store.put_bytes(key, b"{")

    with pytest.raises(DataError, match=key):
        stored.stored_lock(run.context())
