import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from core.errors import DataError, SourceError
from pytorch_build.lock.resolve import locked_prebuilt_project, resolve
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import TorchRef
from pytorch_build.sources.git import OriginReader, Origins
from tests.kit.locks import Upstream
from tests.kit.repos import commit_files, run_git

TRITON_PIN = ".ci/docker/ci_commit_pins/triton.txt"


@dataclass(frozen=True, kw_only=True)
class UpstreamCommits:
    """Commits of the repositories without pins; audio has an older one and a newer one."""

    folder: Path
    triton: str
    audio: str
    newer_audio: str


@dataclass(kw_only=True)
class World(Upstream):
    """Upstream repositories whose torch pins a triton and the older audio, and the ref over them."""

    commits: UpstreamCommits
    torch: str = ""

    def pin(self, texts: Mapping[str, str] | None = None) -> None:
        """Commit torch's tree with its pins, or with other texts in their place."""
        related_commits = f"ubuntu|p|torchaudio|main|{self.commits.audio}|{self.root / 'audio'}\n"
        pins = {
            "version.txt": "2.10.0a0\n",
            "related_commits": related_commits,
            TRITON_PIN: f"{self.commits.triton}\n",
            ".ci/docker/triton_version.txt": "3.6.0\n",
        }
        self.torch = self.commit("torch", {**pins, **(texts or {})})

    def resolve(
        self,
        ref: TorchRef | None = None,
        *,
        rocm_version: str = "7.10.0",
        release_type: str = "ci",
        origins: Origins | None = None,
        explicit_refs: Mapping[str, str] | None = None,
        require_related_commit: bool = False,
    ) -> SourceLock:
        """Resolve the ref, or another one."""
        return resolve(
            ref or self.ref,
            rocm_version=rocm_version,
            release_type=release_type,
            cache=self.root / ".cache",
            origins=origins,
            explicit_refs=explicit_refs,
            require_related_commit=require_related_commit,
        )


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> UpstreamCommits:
    """Return the commits of repositories that tests copy."""
    folder = tmp_path_factory.mktemp("upstream")
    return UpstreamCommits(
        folder=folder,
        triton=commit_files(folder / "triton", {"python/triton/__init__.py": "__version__ = '3.5.0'\n"}),
        audio=commit_files(folder / "audio", {"version.txt": "2.9.0\n"}),
        newer_audio=commit_files(folder / "audio", {"version.txt": "2.10.0a0\n"}),
    )


@pytest.fixture
def world(tmp_path: Path, commits: UpstreamCommits) -> World:
    """Return repositories of this test's own."""
    shutil.copytree(commits.folder, tmp_path, dirs_exist_ok=True)
    world = World(root=tmp_path, commits=commits)
    world.pin()
    world.set_ref(
        ("triton", "torch", "audio"),
        {
            "triton": {"ref": "", "pin": "triton"},
            "torch": {"hipify": True},
            "audio": {"pin": "related_commits"},
        },
    )
    return world


# Commits and versions


@pytest.mark.processes
def test_locks_torch_at_the_refs_branch(world: World) -> None:
    torch = world.resolve().project("torch")

    assert torch.commit == world.torch
    assert torch.ref == "main"
    assert torch.versions == {"rocm": "2.10.0a0+rocm7.10.0", "cpu": "2.10.0a0+cpu"}


@pytest.mark.processes
def test_locks_other_projects_as_torch_pins_them_in_the_order_of_builds(world: World) -> None:
    lock = world.resolve()

    assert list(lock.projects) == ["triton", "torch", "audio"]
    assert lock.project("audio").commit == world.commits.audio
    assert lock.project("audio").base_version == "2.9.0"
    assert lock.project("triton").commit == world.commits.triton
    # torch's tree names it, whatever triton's own says.
    assert lock.project("triton").base_version == "3.6.0"


@pytest.mark.processes
def test_takes_a_users_ref_before_a_pin(world: World) -> None:
    audio = world.resolve(explicit_refs={"audio": "main"}).project("audio")

    assert audio.commit == world.commits.newer_audio
    assert audio.base_version == "2.10.0a0"


@pytest.mark.processes
def test_locks_a_commit_that_the_ref_names(world: World) -> None:
    ref = world.with_source("audio", ref=world.commits.audio, pin="")

    assert world.resolve(ref).project("audio").commit == world.commits.audio


@pytest.mark.processes
def test_looks_for_a_pinned_commit_in_an_origin_of_the_users_own(world: World) -> None:
    run_git(world.root, "clone", "--quiet", "--bare", "audio", "fork")
    ref = world.with_source("audio", origin=str(world.root / "fork"), has_own_origin=True)

    audio = world.resolve(ref).project("audio")

    assert audio.origin == str(world.root / "fork")
    assert audio.commit == world.commits.audio


@pytest.mark.processes
def test_adds_the_commit_to_versions_for_developers(world: World) -> None:
    lock = world.resolve(release_type="dev")

    assert lock.version("torch", gpu=True) == f"2.10.0a0+git{world.torch[:8]}.rocm7.10.0"


@pytest.mark.processes
def test_takes_tritons_own_version_without_torchs_tree(world: World) -> None:
    ref = replace(world.with_source("triton", ref="main", pin=""), components=("triton",))
    ref = replace(ref, projects={"triton": ref.projects["triton"]})

    assert world.resolve(ref).project("triton").base_version == "3.5.0"


@pytest.mark.processes
def test_reads_resolved_commits_from_the_cache(world: World) -> None:
    lock = world.resolve()
    (world.root / "audio").rename(world.root / "gone")

    assert world.resolve() == lock


# Trees without pins


def remove_related_commits(world: World) -> None:
    """Commit a torch without pins of other projects."""
    run_git(world.root / "torch", "rm", "--quiet", "related_commits")
    world.torch = world.commit("torch", {})


@pytest.mark.processes
def test_takes_the_refs_branch_where_torch_pins_nothing(world: World) -> None:
    remove_related_commits(world)

    assert world.resolve().project("audio").commit == world.commits.newer_audio


@pytest.mark.processes
def test_requires_a_pin_where_a_user_does(world: World) -> None:
    remove_related_commits(world)

    with pytest.raises(SourceError, match="audio") as caught:
        world.resolve(require_related_commit=True)

    assert "related_commits" in caught.value.message


# Names of commits


@pytest.mark.processes
def test_takes_a_tag_before_a_branch_and_the_commit_that_it_stands_for(world: World) -> None:
    torch = world.root / "torch"
    run_git(torch, "tag", "--annotate", "--message", "x", "v2")
    newer_commit = world.commit("torch", {"version.txt": "2.11.0\n"})
    run_git(torch, "branch", "v2")
    reader = OriginReader(cache=world.root / ".cache")

    assert reader.resolve_commit(str(torch), "v2") == world.torch
    assert reader.resolve_commit(str(torch), run_git(torch, "rev-parse", "refs/tags/v2")) == world.torch
    assert reader.resolve_commit(str(torch), "refs/heads/v2") == newer_commit
    assert reader.resolve_commit(str(torch), "HEAD") == newer_commit


@pytest.mark.processes
def test_rejects_a_tree_where_a_commit_is_expected(world: World) -> None:
    torch = world.root / "torch"
    reader = OriginReader(cache=world.root / ".cache")

    with pytest.raises(SourceError, match="not a commit"):
        reader.resolve_commit(str(torch), run_git(torch, "rev-parse", "HEAD^{tree}"))


# Origins


@pytest.fixture
def sample(world: World) -> tuple[TorchRef, Origins]:
    """Return a ref with an origin of the sample and one behind a mirror, and how both are reached."""
    ref = world.with_source("torch", origin="sample:torch")
    triton = replace(ref.projects["triton"], origin="https://example.invalid/triton")
    ref = replace(ref, projects={**ref.projects, "triton": triton})
    origins = Origins(
        repositories={"torch": world.root / "torch"},
        mirrors={"https://example.invalid/": f"{world.root}/"},
    )
    return ref, origins


@pytest.mark.processes
def test_locks_origins_as_they_are_named_and_not_where_they_were_reached(
    world: World, sample: tuple[TorchRef, Origins]
) -> None:
    ref, origins = sample

    lock = world.resolve(ref, origins=origins)

    assert lock.project("torch").origin == "sample:torch"
    assert lock.project("triton").origin == "https://example.invalid/triton"
    assert lock.project("triton").commit == world.commits.triton


@pytest.mark.processes
@pytest.mark.parametrize(
    ("rocm_version", "suffix"),
    [("7.99.0.dev0+sample", "devrocm7.99.0.dev0.sample"), ("7.10.0", "rocm7.10.0.sample")],
    ids=["sample's ROCm", "another ROCm"],
)
def test_labels_versions_of_the_sample_with_any_rocm(
    world: World, sample: tuple[TorchRef, Origins], rocm_version: str, suffix: str
) -> None:
    ref, origins = sample
    labelled_ref = replace(ref, local_label="sample")

    lock = world.resolve(labelled_ref, origins=origins, rocm_version=rocm_version)

    assert lock.version("torch", gpu=True) == f"2.10.0a0+{suffix}"
    assert lock.version("torch", gpu=False) == "2.10.0a0+cpu.sample"


# Refs that cannot be locked


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is resolved: a ref, and refs that the user names."""

    ref: TorchRef
    explicit_refs: Mapping[str, str] | None = None


def request_source(project: str, **changes: str) -> Callable[[World], Request]:
    """Return what asks for another source of a project."""
    return lambda world: Request(ref=world.with_source(project, **changes))


def request_pins(texts: Mapping[str, str]) -> Callable[[World], Request]:
    """Return what asks for a torch with other pins."""

    def request(world: World) -> Request:
        world.pin(texts)
        return Request(ref=world.ref)

    return request


def request_short_commit(world: World) -> Request:
    """Ask for an audio by the start of its commit."""
    return Request(ref=world.ref, explicit_refs={"audio": world.commits.audio[:10]})


def request_triton_without_pin(world: World) -> Request:
    """Ask for a triton that torch should pin and does not."""
    run_git(world.root / "torch", "rm", "--quiet", TRITON_PIN)
    world.commit("torch", {})
    return Request(ref=world.ref)


def request_triton_of_prebuilt_torch(world: World) -> Request:
    """Ask for a triton that torch should pin, beside a torch without a tree."""
    return Request(ref=replace(world.with_source("torch", prebuilt="torch"), components=("triton",)))


def request_audio_without_version(world: World) -> Request:
    """Ask for an audio that names no version."""
    run_git(world.root / "audio", "rm", "--quiet", "version.txt")
    world.commit("audio", {})
    return Request(ref=world.ref, explicit_refs={"audio": "main"})


def request_nothing(world: World) -> Request:
    """Ask for a ref without projects."""
    return Request(ref=replace(world.ref, components=(), projects={}))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("make_request", "error", "names"),
    [
        pytest.param(
            request_source("torch", ref="release/9.9"),
            SourceError,
            ["torch ref mine", "'release/9.9'"],
            id="unknown branch",
        ),
        pytest.param(
            request_source("torch", origin="/nowhere"),
            SourceError,
            ["/nowhere", "not appear to be a git repository"],
            id="no repository",
        ),
        pytest.param(
            request_source("torch", origin="sample:tourch"),
            SourceError,
            ["sample:tourch", "'torch'"],
            id="unknown sample",
        ),
        pytest.param(request_short_commit, SourceError, ["40 digits"], id="short commit"),
        pytest.param(
            request_triton_without_pin,
            SourceError,
            ["triton", TRITON_PIN, "refs.mine.triton"],
            id="no pin",
        ),
        pytest.param(
            request_triton_of_prebuilt_torch, SourceError, ["triton", "prebuilt"], id="prebuilt torch"
        ),
        pytest.param(
            request_pins({TRITON_PIN: "1" * 40}),
            SourceError,
            ["triton", TRITON_PIN, "1" * 40],
            id="pinned commit is gone",
        ),
        pytest.param(
            request_pins({"related_commits": "# five fields\nubuntu|p|torchaudio|main|x\n"}),
            SourceError,
            ["related_commits", "line 2", "5 fields"],
            id="malformed pin",
        ),
        pytest.param(request_audio_without_version, SourceError, ["audio", "version.txt"], id="no version"),
        pytest.param(request_nothing, DataError, ["mine", "components"], id="no components"),
    ],
)
def test_names_what_cannot_be_locked(
    world: World,
    make_request: Callable[[World], Request],
    error: type[Exception],
    names: list[str],
) -> None:
    request = make_request(world)
    origins = Origins(repositories={"torch": world.root})

    with pytest.raises(error) as caught:
        world.resolve(request.ref, explicit_refs=request.explicit_refs, origins=origins)

    assert [name for name in names if name not in str(caught.value)] == []


# A prebuilt torch


@pytest.mark.parametrize("requirement", ["audio==1", "torch = 2", "==2"])
def test_rejects_a_requirement_that_is_not_one_on_torch(requirement: str) -> None:
    with pytest.raises(DataError, match="prebuilt"):
        locked_prebuilt_project("torch", requirement)


@pytest.mark.parametrize(
    ("requirement", "base_version"),
    [("torch==2.13.0+rocm7", "2.13.0"), ("torch>=2.13", ""), ("torch==2.*", "")],
)
def test_knows_the_version_that_a_requirement_pins(requirement: str, base_version: str) -> None:
    project = locked_prebuilt_project("torch", requirement)

    assert project.prebuilt == requirement
    assert project.base_version == base_version
