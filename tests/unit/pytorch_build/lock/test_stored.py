import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.cli.options import Common
from core.errors import DataError, MissingInputError, SourceError, StoreError, UsageError
from core.packages.sources import SourceOptions
from pytorch_build.context import Context
from pytorch_build.lock import stored as module
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import TorchRef
from pytorch_build.sdk import RocmOptions
from tests.conftest import Commit
from tests.unit.pytorch_build.lock.conftest import Upstream

ROCM = RocmOptions(source=SourceOptions(version="7.10.0"))


class World(Upstream):
    """Upstream repositories in a folder, a torch ref over them, and the run that builds it."""

    def __init__(self, root: Path, commit_files: Commit) -> None:
        super().__init__(root, commit_files)
        self.fork = self.commit("audio-fork", {"version.txt": "2.9.0\n"})
        self.audio = self.commit("audio", {"version.txt": "2.10.0a0\n"})
        self.vision = self.commit("vision", {"version.txt": "0.25.0a0\n"})
        self.torch = self.pin(self.fork)
        self.names(("torch", "audio"), torch={}, audio={"pin": "related_commits"}, vision={})

    def pin(self, audio: str) -> str:
        row = f"ubuntu|p|torchaudio|main|{audio}|https://example.invalid/audio-fork\n"
        return self.commit("torch", {"version.txt": "2.10.0a0\n", "related_commits": row})

    def context(self, *, cpu: bool = False, ref: TorchRef | None = None, **options: Any) -> Context:
        common = Common(root=self.root / "checkout", torch_ref="mine", **options)
        name, targets = ("cpu", ()) if cpu else ("gfx942", ("gfx942",))
        return Context(common=common, ref=ref or self.ref, gpu_family=name, gpu_targets=targets)


@pytest.fixture
def world(tmp_path: Path, commit_files: Commit, monkeypatch: pytest.MonkeyPatch) -> World:
    # a person's own settings of git, which name a mirror
    monkeypatch.setenv("HOME", str(tmp_path))
    mirror = f'[url "{tmp_path}/"]\n\tinsteadOf = https://example.invalid/\n'
    (tmp_path / ".gitconfig").write_text(f'{mirror}[protocol "file"]\n\tallow = always\n')
    return World(tmp_path, commit_files)


@pytest.mark.processes
@pytest.mark.parametrize(
    "origin", ["file:///srv/a", "/srv/a", "../a", "fd::0", "ext::sh -c true", "http://a/b"]
)
def test_unnamed_origins_are_encrypted(world: World, monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    lock = module.source_lock(world.context(), ROCM)
    changed = lock.project("audio").model_copy(update={"origin": origin})
    lock = lock.model_copy(update={"projects": {**lock.projects, "audio": changed}})
    manifests = world.root / "checkout/out/local-linux/manifests"
    (manifests / "source-lock-mine.json").write_text(lock.model_dump_json())
    said = rf"projects\.audio\.origin: '{re.escape(origin)}' is not an https:// or ssh:// address"
    for read in (module.stored_lock, lambda context: module.source_lock(context, ROCM)):
        with pytest.raises(SourceError, match=f"source-lock-mine.json: {said}"):
            read(world.context())
    world.commit("torch", {"related_commits": f"ubuntu|p|torchaudio|main|{world.fork}|{origin}\n"})
    with pytest.raises(SourceError, match=r"related_commits of .*: audio: '.*' is not an https://"):
        module.source_lock(world.context(), ROCM, update=True)
    monkeypatch.setenv(module.PASSED, lock.compact())
    with pytest.raises(SourceError, match=f"SOURCE_LOCK: {said}"):
        module.stored_lock(world.context())
    named = world.with_source("audio", origin=origin, own_origin=True)
    assert module.stored_lock(world.context(ref=named)) == lock, "a person's own"


def commits(lock: SourceLock) -> dict[str, str]:
    return {name: locked.commit for name, locked in lock.projects.items()}


@pytest.mark.processes
def test_a_lock_is_kept_until_it_is_to_be_updated(world: World) -> None:
    module.source_lock(world.context(dry_run=True), ROCM)
    assert module.stored_lock(world.context()) is None
    first = module.source_lock(world.context(), ROCM)
    assert commits(first) == {"torch": world.torch, "audio": world.fork}
    newer = world.commit("torch", {"new.py": ""})
    assert module.source_lock(world.context(), ROCM) == first
    updated = module.source_lock(world.context(), ROCM, update=True)
    assert updated.project("torch").commit == newer
    assert module.stored_lock(world.context()) == updated
    lock = module.source_lock(world.context(release_type="dev"), ROCM)
    assert f"git{newer[:8]}" in lock.version("torch", gpu=True), "a release type has versions of its own"


@pytest.mark.processes
def test_a_rocm_version_is_added_without_changing_commits(world: World) -> None:
    first = module.source_lock(world.context(cpu=True), RocmOptions())
    assert first.rocm_version == ""
    world.pin(world.commit("audio-fork", {"newer.py": ""}))
    completed = module.source_lock(world.context(), ROCM)
    assert completed.version("audio", gpu=True) == "2.9.0+rocm7.10.0"
    assert completed.version("audio", gpu=False) == first.version("audio", gpu=False)
    for name, locked in first.projects.items():
        kept = completed.project(name)
        # where a pin led to stays, even in another repository than the ref's
        assert (kept.commit, kept.ref, kept.origin) == (locked.commit, locked.ref, locked.origin)
    # and a cpu build does not take the ROCm versions out again
    assert module.source_lock(world.context(cpu=True), RocmOptions()) == completed


@pytest.mark.processes
def test_another_rocm_version_replaces_that_of_the_local_run_only(world: World) -> None:
    first = module.source_lock(world.context(), ROCM)
    other = module.source_lock(world.context(), RocmOptions(source=SourceOptions(version="7.11.0")))
    assert other.rocm_version == "7.11.0"
    assert commits(other) == commits(first)
    # a component asked for by name is added and stays
    world.commit("torch", {"new.py": ""})
    more = module.source_lock(module.with_components(world.context(), "vision"), ROCM)
    assert commits(more) == {**commits(first), "vision": world.vision}
    assert module.source_lock(world.context(), ROCM) == more
    again = module.source_lock(world.context(), RocmOptions(source=SourceOptions(version="7.11.0")))
    assert commits(again) == commits(more)
    module.source_lock(world.context(run_id="77"), ROCM)
    with pytest.raises(MissingInputError, match=r"run 77 does not serve mine on gfx942 with ROCm 7\.11\.0"):
        module.source_lock(world.context(run_id="77"), RocmOptions(source=SourceOptions(version="7.11.0")))


@pytest.mark.processes
@pytest.mark.parametrize("what", ["origin", "ref"])
def test_a_changed_origin_or_ref_resolves_that_project_again(world: World, git: Any, what: str) -> None:
    widened = replace(world.ref, components=("torch", "audio", "vision"))
    first = module.source_lock(world.context(ref=widened), ROCM)
    other = world.commit("vision-fork", {"version.txt": "0.26.0\n"})
    git(world.root / "vision", "branch", "other")
    world.commit("torch", {"new.py": ""})
    changes = {"origin": str(world.root / "vision-fork")} if what == "origin" else {"ref": "other"}
    changed = replace(world.with_source("vision", **changes), components=widened.components)
    lock = module.source_lock(world.context(ref=changed), ROCM)
    assert lock.project("vision").commit == (other if what == "origin" else world.vision)
    assert lock.project("vision").ref == changes.get("ref", "main")
    assert lock.project("torch") == first.project("torch")
    # one's own origin replaces that of a pin
    git(world.root, "clone", "--quiet", "audio-fork", "audio-mine")
    mine = world.with_source("audio", origin=str(world.root / "audio-mine"), own_origin=True)
    assert module.source_lock(world.context(ref=mine), ROCM).project("audio").origin.endswith("audio-mine")


@pytest.mark.processes
def test_another_torch_brings_its_own_pins(world: World, git: Any) -> None:
    module.source_lock(world.context(), ROCM)
    newer = world.commit("audio-fork", {"newer.py": ""})
    world.pin(newer)
    git(world.root / "torch", "branch", "newer")
    lock = module.source_lock(world.context(ref=world.with_source("torch", ref="newer")), ROCM)
    assert lock.project("audio").commit == newer


@pytest.mark.processes
def test_a_ref_that_a_person_chose_outlives_the_next_stage(world: World, git: Any) -> None:
    git(world.root / "torch", "checkout", "--quiet", "-b", "mine")
    chosen = world.commit("torch", {"mine.py": ""})
    git(world.root / "torch", "checkout", "--quiet", "main")
    git(world.root / "audio-fork", "fetch", "--quiet", "../audio", "main:from-audio")
    given = {"torch": "mine", "audio": world.audio}
    lock = module.source_lock(world.context(), ROCM, update=True, explicit=given)
    assert commits(lock) == {"torch": chosen, "audio": world.audio}
    assert module.source_lock(world.context(), ROCM) == lock
    assert commits(
        module.source_lock(world.context(), RocmOptions(source=SourceOptions(version="7.11.0")))
    ) == commits(lock)
    assert commits(module.source_lock(world.context(), ROCM, update=True)) == {
        "torch": world.torch,
        "audio": world.fork,
    }


@pytest.mark.processes
def test_related_commits_can_be_required_of_a_run_that_has_its_lock(world: World) -> None:
    first = module.source_lock(world.context(run_id="77"), ROCM)
    assert module.source_lock(world.context(run_id="77"), ROCM, require_related_commit=True) == first
    vision = replace(world.with_source("vision", pin="related_commits"), components=("torch", "vision"))
    lenient = module.source_lock(world.context(ref=vision), ROCM)
    assert lenient.project("vision").commit == world.vision
    with pytest.raises(SourceError, match="has no such row"):
        module.source_lock(world.context(ref=vision), ROCM, require_related_commit=True)


@pytest.mark.processes
def test_another_run_resolves_on_its_own_and_never_twice(world: World) -> None:
    first = module.source_lock(world.context(run_id="77"), ROCM)
    world.commit("torch", {"new.py": ""})
    assert module.source_lock(world.context(run_id="77"), ROCM) == first
    with pytest.raises(StoreError, match="other bytes"):
        module.source_lock(world.context(run_id="77"), ROCM, update=True)
    assert module.stored_lock(world.context(run_id="77")) == first
    assert module.source_lock(world.context(run_id="78"), ROCM) != first


@pytest.mark.processes
def test_a_prebuilt_torch_replaces_a_locked_one(world: World) -> None:
    module.source_lock(world.context(), ROCM)
    prebuilt = replace(world.with_source("torch", prebuilt="torch==2.13.0"), components=("vision",))
    prebuilt = replace(prebuilt, projects={k: v for k, v in prebuilt.projects.items() if k != "audio"})
    lock = module.source_lock(world.context(ref=prebuilt, cpu=True), RocmOptions())
    assert lock.project("torch").prebuilt == "torch==2.13.0"
    assert "audio" not in lock.projects
    again = module.source_lock(world.context(ref=world.ref), ROCM)
    assert again.project("torch").commit == world.torch


def test_a_lock_that_a_job_passes_precedes_the_stored_one(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.put_lock()
    passed = run.lock(rocm_version="7.1")
    monkeypatch.setenv(module.PASSED, passed.compact())
    assert module.stored_lock(run.context()) == passed
    monkeypatch.setenv(module.PASSED, run.lock().compact().replace("2.10.0a0", "2.11.0a0"))
    with pytest.raises(DataError, match="digest"):
        module.stored_lock(run.context())
    monkeypatch.setenv(module.PASSED, run.lock().compact())
    with pytest.raises(UsageError, match="is for torch ref sample, not nightly"):
        module.stored_lock(run.context(ref="nightly"))
    monkeypatch.delenv(module.PASSED)
    assert module.stored_lock(run.context()) == run.lock()
    key = "local-linux/manifests/source-lock-sample.json"
    run.store.put_bytes(key, b"{")
    with pytest.raises(DataError, match=key):
        module.stored_lock(run.context())


def test_origins_of_real_repositories_make_no_sample(run: Any) -> None:
    found = module.origins(run.common(), run.context(ref="nightly").ref, {"https://github.com/": "/mirror/"})
    assert dict(found.mirrors) == {"https://github.com/": "/mirror/"}
    assert not found.repositories
    assert not (run.root / ".cache").exists()
