from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError, SourceError
from pytorch_build.lock import resolve as module
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import TorchRef
from pytorch_build.sources.git import Origins, Reader
from tests.conftest import Commit, Git
from tests.unit.pytorch_build.lock.conftest import Upstream

pytestmark = pytest.mark.processes
TRITON_PIN = ".ci/docker/ci_commit_pins/triton.txt"


class World(Upstream):
    def __init__(self, root: Path, commit_files: Commit) -> None:
        super().__init__(root, commit_files)
        self.triton = self.commit("triton", {"python/triton/__init__.py": "__version__ = '3.5.0'\n"})
        self.audio = self.commit("audio", {"version.txt": "2.9.0\n"})
        self.newer_audio = self.commit("audio", {"version.txt": "2.10.0a0\n"})
        self.torch = self.commit(
            "torch",
            {
                "version.txt": "2.10.0a0\n",
                "related_commits": f"ubuntu|p|torchaudio|main|{self.audio}|{self.root / 'audio'}\n",
                TRITON_PIN: self.triton + "\n",
                ".ci/docker/triton_version.txt": "3.6.0\n",
            },
        )
        self.names(
            ("triton", "torch", "audio"),
            triton={"ref": "", "pin": "triton"},
            torch={"hipify": True},
            audio={"pin": "related_commits"},
        )

    @property
    def reader(self) -> Reader:
        return Reader(cache=self.root / ".cache")

    def resolve(self, ref: TorchRef | None = None, **options: object) -> SourceLock:
        defaults: dict[str, object] = {
            "rocm_version": "7.10.0",
            "release_type": "ci",
            "cache": self.root / ".cache",
        }
        return resolve(ref or self.ref, **(defaults | options))  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, commit_files: Commit) -> World:
    return World(tmp_path, commit_files)


def test_locks_commits_and_versions(world: World, git: Git) -> None:
    lock = world.resolve()
    assert list(lock.projects) == ["triton", "torch", "audio"]
    assert lock.project("torch").commit == world.torch
    assert lock.project("torch").ref == "main"
    assert lock.version("torch", gpu=True) == "2.10.0a0+rocm7.10.0"
    assert lock.version("torch", gpu=False) == "2.10.0a0+cpu"
    # pins come before the refs' defaults
    assert lock.project("audio").commit == world.audio
    assert lock.version("audio", gpu=False) == "2.9.0+cpu"
    assert lock.project("triton").commit == world.triton
    assert lock.project("triton").base_version == "3.6.0"
    # explicit refs and refs' own sources before them
    explicit = world.resolve(explicit={"audio": "main"}).project("audio")
    assert (explicit.commit, explicit.base_version) == (world.newer_audio, "2.10.0a0")
    by_commit = world.with_source("audio", ref=world.audio, pin="")
    assert world.resolve(by_commit).project("audio").commit == world.audio
    git(world.root, "clone", "--quiet", "--bare", "audio", "fork")
    own = world.with_source("audio", origin=str(world.root / "fork"), own_origin=True)
    locked = world.resolve(own).project("audio")
    assert (locked.origin, locked.commit) == (str(world.root / "fork"), world.audio)
    dev = world.resolve(release_type="dev")
    assert dev.version("torch", gpu=True) == f"2.10.0a0+git{world.torch[:8]}.rocm7.10.0"


def test_without_pin_files_the_defaults_hold(world: World, git: Git) -> None:
    git(world.root / "torch", "rm", "--quiet", "related_commits")
    world.commit("torch", {})
    assert world.resolve().project("audio").commit == world.newer_audio
    with pytest.raises(SourceError, match=r"audio should come from torch's tree, but related_commits of"):
        world.resolve(require_related_commit=True)


@pytest.mark.parametrize("requirement", ["audio==1", "torch = 2", "==2"])
def test_a_requirement_of_something_else_is_refused(requirement: str) -> None:
    with pytest.raises(DataError, match="prebuilt"):
        module.prebuilt("torch", requirement)


def test_annotated_tags_are_peeled_and_come_before_branches(world: World, git: Git) -> None:
    tree = world.root / "torch"
    git(tree, "tag", "--annotate", "--message", "x", "v2")
    world.commit("torch", {"version.txt": "2.11.0\n"})
    git(tree, "branch", "v2")
    reader = world.reader
    assert reader.commit(str(tree), "v2") == world.torch
    assert reader.commit(str(tree), "refs/heads/v2") != world.torch
    assert reader.commit(str(tree), "HEAD") == git(tree, "rev-parse", "HEAD")
    with pytest.raises(SourceError, match="is not a commit"):
        reader.commit(str(tree), git(tree, "rev-parse", "HEAD^{tree}"))


def torch_with(texts: Mapping[str, str]) -> Callable[[World], dict[str, Any]]:
    return lambda world: {"ref": world.ref} if world.commit("torch", texts) else {}


def source(project: str, **changes: str) -> Callable[[World], dict[str, Any]]:
    return lambda world: {"ref": world.with_source(project, **changes)}


def without(project: str, name: str, **options: Any) -> Callable[[World], dict[str, Any]]:
    def remove(world: World) -> dict[str, Any]:
        (world.root / project / name).unlink()
        world.commit(project, {"README": "x"})
        return options

    return remove


def of_prebuilt_torch(world: World) -> dict[str, Any]:
    return {"ref": replace(world.with_source("torch", prebuilt="torch"), components=("triton",))}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (source("torch", ref="release/9.9"), "torch ref mine: .* has no branch or tag 'release/9.9'"),
        (source("torch", origin="/nowhere"), "nowhere does not answer: .*not appear to be a git repository"),
        (source("torch", origin="sample:tourch"), "sample:tourch names no repository.*'torch'"),
        (lambda world: {"explicit": {"audio": world.audio[:10]}}, "write all 40 digits"),
        (without("torch", TRITON_PIN), r"triton should come from .*txt .* does not exist(?s:.*)refs.mine"),
        (of_prebuilt_torch, "torch is prebuilt or not known"),
        (torch_with({TRITON_PIN: "1" * 40}), rf"triton is pinned by .*triton\.txt of .*{'1' * 40}"),
        (
            torch_with({"related_commits": "# five fields\nubuntu|p|torchaudio|main|x\n"}),
            r"related_commits of .*torch at [0-9a-f]{12}, line 2: 5 fields",
        ),
        (
            without("audio", "version.txt", explicit={"audio": "main"}),
            r"version\.txt of .*audio at .* does not exist",
        ),
        (lambda world: {"ref": replace(world.ref, components=(), projects={})}, "has no components"),
    ],
)
def test_what_has_no_lock_is_named(world: World, spoil: Callable[[World], dict[str, Any]], said: str) -> None:
    options = {"ref": world.ref, "origins": Origins(repositories={"torch": world.root}), **spoil(world)}
    with pytest.raises((DataError, SourceError), match=said):
        world.resolve(**options)


def test_triton_without_torchs_tree_says_its_own_version(world: World) -> None:
    ref = replace(world.with_source("triton", ref="main", pin=""), components=("triton",))
    ref = replace(ref, projects={"triton": ref.projects["triton"]})
    assert world.resolve(ref).project("triton").base_version == "3.5.0"


def test_sample_origins_and_mirrors_lead_to_repositories(world: World) -> None:
    ref = world.with_source("torch", origin="sample:torch")
    ref = replace(
        ref,
        projects={
            **ref.projects,
            "triton": replace(ref.projects["triton"], origin="https://example.invalid/triton"),
        },
    )
    origins = Origins(
        repositories={"torch": world.root / "torch"}, mirrors={"https://example.invalid/": f"{world.root}/"}
    )
    labelled, lock = replace(ref, local_label="sample"), world.resolve(ref, origins=origins)
    for rocm_version, suffix in (("7.99.0.dev0+sample", "devrocm7.99.0.dev0"), ("7.10.0", "rocm7.10.0")):
        # the label stays when a user tries another ROCm version
        other = world.resolve(labelled, origins=origins, rocm_version=rocm_version)
        assert other.version("torch", gpu=True) == f"2.10.0a0+{suffix}.sample"
        assert other.version("torch", gpu=False) == "2.10.0a0+cpu.sample"
        # the lock names the origins, not where they were reached
        assert lock.project("torch").origin == "sample:torch"
        assert lock.project("triton").origin == "https://example.invalid/triton"
        assert lock.project("triton").commit == world.triton


def test_resolved_commits_are_read_from_the_cache_again(world: World) -> None:
    lock = world.resolve()
    (world.root / "audio").rename(world.root / "gone")
    assert world.resolve() == lock
