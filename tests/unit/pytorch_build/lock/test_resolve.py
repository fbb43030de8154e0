from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.errors import DataError, SourceError
from pytorch_build.lock import resolve as module
from pytorch_build.lock.resolve import resolve
from pytorch_build.refs.torch_refs import ProjectSource, TorchRef
from pytorch_build.sources.git import Origins, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytorch_build.lock.source_lock import SourceLock

    Commit = Callable[[Path, Mapping[str, str]], str]

pytestmark = pytest.mark.processes
TRITON_PIN = ".ci/docker/ci_commit_pins/triton.txt"


class World:
    """Upstream repositories in a folder, and a torch ref over them."""

    def __init__(self, root: Path, commit_files: Commit) -> None:
        self.root, self._commit = root, commit_files
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
        torch = ProjectSource(project="torch", origin=str(root / "torch"), ref="main", hipify=True)
        audio = ProjectSource(project="audio", origin=str(root / "audio"), ref="main", pin="related_commits")
        triton = ProjectSource(project="triton", origin=str(root / "triton"), pin="triton")
        self.ref = TorchRef(
            name="mine",
            projects={"triton": triton, "torch": torch, "audio": audio},
            components=("triton", "torch", "audio"),
            pythons=("3.12",),
            platforms={},
        )

    @property
    def reader(self) -> Reader:
        return Reader(cache=self.root / ".cache")

    def commit(self, name: str, texts: Mapping[str, str]) -> str:
        return self._commit(self.root / name, texts)

    def with_source(self, project: str, **changes: object) -> TorchRef:
        source = replace(self.ref.projects[project], **changes)  # type: ignore[arg-type]
        return replace(self.ref, projects={**self.ref.projects, project: source})

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


def test_locks_commits_and_versions(world: World) -> None:
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


def test_a_version_names_the_torch_of_another_release_where_the_ref_says_so(world: World) -> None:
    lock = world.resolve(world.with_source("audio", torch_in_version=True))
    assert lock.version("audio", gpu=True) == "2.9.0+torch2.10.rocm7.10.0"
    assert lock.version("audio", gpu=False) == "2.9.0+torch2.10.cpu"
    same = world.resolve(world.with_source("audio", torch_in_version=True), explicit={"audio": "main"})
    assert same.version("audio", gpu=True) == "2.10.0a0+rocm7.10.0"


def test_tritons_version_has_the_commit_that_its_setup_adds(world: World) -> None:
    assert world.resolve().version("triton", gpu=True) == "3.6.0+rocm7.10.0"
    commit = world.commit("triton", {"setup.py": "def get_git_commit_hash(length=8): ...\n"})
    lock = world.resolve(explicit={"triton": commit})
    assert lock.project("triton").tagged
    assert lock.version("triton", gpu=True) == f"3.6.0+git{commit[:8]}.rocm7.10.0"
    assert lock.version("torch", gpu=True) == "2.10.0a0+rocm7.10.0"


def test_an_explicit_ref_comes_before_a_pin(world: World) -> None:
    lock = world.resolve(explicit={"audio": "main"})
    assert lock.project("audio").commit == world.newer_audio
    assert lock.project("audio").base_version == "2.10.0a0"


def test_without_pin_files_the_defaults_hold(world: World, git: Callable[..., str]) -> None:
    git(world.root / "torch", "rm", "--quiet", "related_commits")
    world.commit("torch", {})
    assert world.resolve().project("audio").commit == world.newer_audio
    with pytest.raises(SourceError, match=r"audio should come from torch's tree, but related_commits of"):
        world.resolve(require_related_commit=True)


def test_a_pin_that_is_absent_and_has_no_default_is_refused(world: World, git: Callable[..., str]) -> None:
    git(world.root / "torch", "rm", "--quiet", TRITON_PIN)
    world.commit("torch", {})
    with pytest.raises(
        SourceError, match=r"triton should come from .*triton\.txt .* does not exist"
    ) as caught:
        world.resolve()
    assert "[refs.mine.triton]" in caught.value.hint


def test_a_prebuilt_torch_is_locked_as_its_requirement(world: World) -> None:
    ref = replace(world.with_source("torch", prebuilt="torch==2.13.0+cpu"), components=("audio",))
    ref = replace(ref, projects={**ref.projects, "audio": replace(ref.projects["audio"], pin="")})
    lock = world.resolve(ref, rocm_version="")
    assert list(lock.projects) == ["torch", "audio"]
    assert lock.project("torch").prebuilt == "torch==2.13.0+cpu"
    assert lock.project("torch").base_version == "2.13.0"
    assert lock.project("torch").commit == ""
    assert lock.project("audio").versions == {"cpu": "2.10.0a0+cpu"}


def test_a_pin_needs_torchs_tree(world: World) -> None:
    ref = replace(world.with_source("torch", prebuilt="torch"), components=("triton",))
    with pytest.raises(SourceError, match="torch is prebuilt or not known"):
        world.resolve(ref)


@pytest.mark.parametrize("requirement", ["audio==1", "torch = 2", "==2"])
def test_a_requirement_of_something_else_is_refused(requirement: str) -> None:
    with pytest.raises(DataError, match="prebuilt"):
        module.prebuilt("torch", requirement)


def test_annotated_tags_are_peeled_and_come_before_branches(world: World, git: Callable[..., str]) -> None:
    tree = world.root / "torch"
    git(tree, "tag", "--annotate", "--message", "x", "v2")
    world.commit("torch", {"version.txt": "2.11.0\n"})
    git(tree, "branch", "v2")
    reader = world.reader
    assert reader.commit(str(tree), "v2") == world.torch
    assert reader.commit(str(tree), "refs/heads/v2") != world.torch
    assert reader.commit(str(tree), "HEAD") == git(tree, "rev-parse", "HEAD")


def test_a_commit_is_resolved_by_fetching_it(world: World) -> None:
    ref = world.with_source("audio", ref=world.audio, pin="")
    assert world.resolve(ref).project("audio").commit == world.audio
    reader = world.reader
    with pytest.raises(SourceError, match=f"does not have the commit {'0' * 40}"):
        reader.commit(str(world.root / "audio"), "0" * 40)


def test_a_hash_that_is_no_commit_is_refused(world: World, git: Callable[..., str]) -> None:
    tree = git(world.root / "audio", "rev-parse", "HEAD^{tree}")
    with pytest.raises(SourceError, match="is not a commit"):
        world.reader.commit(str(world.root / "audio"), tree)


def test_a_ref_that_has_gone_is_named_with_its_origin(world: World) -> None:
    with pytest.raises(SourceError) as caught:
        world.resolve(world.with_source("torch", ref="release/9.9"))
    assert caught.value.message == (
        f"torch of torch ref mine: {world.root / 'torch'} has no branch or tag 'release/9.9'."
    )


def test_a_short_hash_gets_advice(world: World) -> None:
    with pytest.raises(SourceError, match="write all 40 digits"):
        world.resolve(explicit={"audio": world.audio[:10]})


def test_a_pinned_commit_that_is_not_there_names_the_pin(world: World) -> None:
    world.commit("torch", {TRITON_PIN: "1" * 40})
    with pytest.raises(SourceError, match=rf"triton is pinned by .*triton\.txt of .*{'1' * 40}"):
        world.resolve()


def test_a_malformed_pin_names_its_line(world: World) -> None:
    world.commit("torch", {"related_commits": "# five fields\nubuntu|p|torchaudio|main|x\n"})
    with pytest.raises(SourceError, match=r"related_commits of .*torch at [0-9a-f]{12}, line 2: 5 fields"):
        world.resolve()


def test_an_origin_that_does_not_answer_says_what_git_said(world: World) -> None:
    ref = world.with_source("torch", origin=str(world.root / "nowhere"))
    with pytest.raises(SourceError, match=r"nowhere does not answer: .*not appear to be a git repository"):
        world.resolve(ref)


def test_a_project_without_version_file_is_refused(world: World, git: Callable[..., str]) -> None:
    git(world.root / "audio", "rm", "--quiet", "version.txt")
    world.commit("audio", {"README": "x"})
    with pytest.raises(SourceError, match=r"version\.txt of .*audio at .* does not exist"):
        world.resolve(explicit={"audio": "main"})


def test_triton_without_torchs_tree_says_its_own_version(world: World) -> None:
    ref = replace(world.with_source("triton", ref="main", pin=""), components=("triton",))
    ref = replace(ref, projects={"triton": ref.projects["triton"]})
    assert world.resolve(ref).project("triton").base_version == "3.5.0"


def test_a_ref_without_components_is_refused(world: World) -> None:
    with pytest.raises(DataError, match="has no components"):
        world.resolve(replace(world.ref, components=(), projects={}))


def test_dev_versions_name_the_locked_commit(world: World) -> None:
    lock = world.resolve(release_type="dev")
    assert lock.version("torch", gpu=True) == f"2.10.0a0+git{world.torch[:8]}.rocm7.10.0"


@pytest.mark.parametrize(
    ("rocm_version", "version"),
    [
        ("7.99.0.dev0+sample", "2.10.0a0+devrocm7.99.0.dev0.sample"),
        # the label stays when the user tries another ROCm version
        ("7.10.0", "2.10.0a0+rocm7.10.0.sample"),
    ],
)
def test_the_samples_label_is_in_every_version(world: World, rocm_version: str, version: str) -> None:
    lock = world.resolve(replace(world.ref, local_label="sample"), rocm_version=rocm_version)
    assert lock.version("torch", gpu=True) == version
    assert lock.version("torch", gpu=False) == "2.10.0a0+cpu.sample"


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
        repositories={"torch": world.root / "torch"},
        mirrors={"https://example.invalid/": f"{world.root}/"},
    )
    lock = world.resolve(ref, origins=origins)
    # the lock names the origins, not where they were reached
    assert lock.project("torch").origin == "sample:torch"
    assert lock.project("triton").origin == "https://example.invalid/triton"
    assert lock.project("triton").commit == world.triton


def test_an_unknown_sample_repository_is_refused(world: World) -> None:
    with pytest.raises(SourceError, match=r"sample:tourch names no repository.*'torch'"):
        world.resolve(
            world.with_source("torch", origin="sample:tourch"),
            origins=Origins(repositories={"torch": world.root}),
        )


def test_a_pins_origin_gives_way_to_the_refs_own(world: World, git: Callable[..., str]) -> None:
    git(world.root, "clone", "--quiet", "--bare", "audio", "fork")
    ref = world.with_source("audio", origin=str(world.root / "fork"), own_origin=True)
    locked = world.resolve(ref).project("audio")
    assert (locked.origin, locked.commit) == (str(world.root / "fork"), world.audio)


def test_resolved_commits_are_read_from_the_cache_again(world: World) -> None:
    lock = world.resolve()
    (world.root / "audio").rename(world.root / "gone")
    assert world.resolve() == lock
