"""A run of real torch refs, as the data has them, on a family's artifacts in a private bucket.

Local repositories stand in for GitHub's (``GIT_MIRRORS``): what the refs data says of `nightly` and
`release/2.10` (hosts, branches, pins, components) is followed; the sources are the sample's, whose
wheels are compiled and then refused for their size, as only the ref `sample` may make small ones.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytorch_build.components import COMPONENTS
from pytorch_build.sample import ensure_repositories
from tests.kit.artifact_archives import pack_all
from tests.kit.clones import FAMILY, SERIES
from tests.kit.repos import run_git
from tests.kit.s3_servers import S3Server
from tests.kit.workflow_engine import ACT, Engine

pytestmark = [ACT, pytest.mark.nightly]

# Torch ref -> the version that its branch has.
REFS = {"nightly": "2.14.0a0", "release/2.10": "2.10.0"}
ARTIFACT_RUN = "17"
DATA = Path(__file__).with_name("texts").joinpath("release-config.toml").read_text()
LOCKED = {
    "nightly": "triton 3.6.0, torch 2.14.0a0, audio 2.10.0a0, vision 0.28.0a0, apex 1.14.0",
    "release/2.10": "triton 3.6.0, torch 2.10.0, audio 2.10.0a0, vision 0.25.0a0, apex 1.10.0",
}


def push_branch(repository: Path, scratch: Path, name: str, edits: Mapping[str, Mapping[str, str]]) -> str:
    """Commit edits (file -> old text -> new text) to a branch of a bare repository; return the commit."""
    tree = scratch / f"{repository.name}-{name.replace('/', '-')}"
    run_git(scratch, "clone", "--quiet", repository, tree)
    for file, changes in edits.items():
        text = (tree / file).read_text(encoding="utf-8")
        for old, new in changes.items():
            text = text.replace(old, new)
        (tree / file).write_text(text, encoding="utf-8")
    run_git(tree, "commit", "--quiet", "--all", "--message", f"Branch {name}")
    run_git(tree, "push", "--quiet", "--force", "origin", f"HEAD:refs/heads/{name}")
    return run_git(tree, "rev-parse", "HEAD")


def push_newer_companions(repositories: Mapping[str, Path], scratch: Path) -> Mapping[str, str]:
    """Give vision and apex newer commits, as nightly's pins have; return pinned commit -> newer one."""
    pins = run_git(repositories["torch"], "show", "main:related_commits")
    newer_commits = {}
    for name, old_version, new_version in (("vision", "0.25.0a0", "0.28.0a0"), ("apex", "1.10.0", "1.14.0")):
        (pinned,) = set(re.findall(rf"\|([0-9a-f]{{40}})\|sample:{name}", pins))
        edits = {"version.txt": {old_version: new_version}}
        newer_commits[pinned] = push_branch(repositories[name], scratch, "newer", edits)
    return newer_commits


def link_hosts(repositories: Mapping[str, Path], hosts: Path) -> None:
    """Give the repositories the addresses that they have at their hosts."""
    for owner in ("pytorch", "ROCm"):
        for name, repository in repositories.items():
            link = hosts / owner / f"{'pytorch' if name == 'torch' else name}.git"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(repository)
            # Torch's submodules name each other by relative addresses.
            if name.startswith("mini"):
                link.with_suffix("").symlink_to(repository)


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the hosts' repositories: nightly has newer companions than release/2.10, as upstream's has."""
    scratch = tmp_path_factory.mktemp("trees")
    repositories = ensure_repositories(scratch / "sample")
    owners = (("apex", "ROCm"), ("vision", "pytorch"), ("audio", "pytorch"))
    addresses = {f"sample:{name}": f"https://github.com/{owner}/{name}" for name, owner in owners}
    newer_commits = push_newer_companions(repositories, scratch)

    for ref, version in REFS.items():
        commits = newer_commits if ref == "nightly" else {}
        edits = {"version.txt": {"2.10.0a0": version}, "related_commits": {**addresses, **commits}}
        push_branch(repositories["torch"], scratch, ref, edits)
    link_hosts(repositories, scratch / "hosts")
    return scratch / "hosts"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A downstream's repository, and the folder of its private bucket with ROCm's artifacts."""

    engine: Engine
    bucket: Path


@pytest.fixture(scope="module")
def site(
    rclone_server: S3Server, split_artifacts: Path, mirrors: Path, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    assert rclone_server.folder is not None
    bucket = rclone_server.folder / rclone_server.make_bucket()
    pack_all(split_artifacts, bucket / f"{ARTIFACT_RUN}-linux")
    engine = Engine.create(
        tmp_path_factory.mktemp("downstream"),
        repository="example/wheels",
        config=DATA.format(bucket=bucket.name, family=FAMILY),
        variables={**rclone_server.variables, "GIT_MIRRORS": f"https://github.com/={mirrors}/"},
    )
    return Site(engine=engine, bucket=bucket)


def read_lock(manifests: Path, ref: str) -> str:
    """Return the versions that a ref's source lock has."""
    path = manifests / f"source-lock-{ref.replace('/', '-')}.json"
    projects = json.loads(path.read_text(encoding="utf-8"))["projects"]
    versions: list[str] = []
    for name in COMPONENTS:
        version, _plus, _label = projects[name]["versions"]["rocm"].partition("+")
        versions.append(f"{name} {version}")
    return ", ".join(versions)


def refused_cells(log: str) -> set[Sequence[str]]:
    """Return (torch ref, family) of the builds whose first wheel was compiled, and refused for its size."""
    assert "The checks found 1 error:" in log
    return set(re.findall(r"again: nox -s build_triton .*--torch-ref=(\S+) --gpu-family=([\w-]+)", log))


def test_real_refs_are_resolved_and_their_wheels_compiled(site: Site) -> None:
    inputs = {
        "linux_amdgpu_families": FAMILY,
        "windows_amdgpu_families": "none",
        "build_pytorch": "true",
        "pytorch_git_refs": " ".join(REFS),
        "pytorch_python_versions": SERIES,
        "artifact_run_id": ARTIFACT_RUN,
        "artifact_store": f"s3://{site.bucket.name}",
    }

    run = site.engine.run("workflow_dispatch", "3001", {"inputs": inputs, "ref": "refs/heads/main"})

    assert run.exit_code != 0
    manifests = site.bucket / "3001-linux" / "manifests"
    for ref, versions in LOCKED.items():
        assert read_lock(manifests, ref) == versions
    record = json.loads((manifests / FAMILY / "build_rocm.json").read_text(encoding="utf-8"))
    assert record["status"] == "ok"
    assert refused_cells(run.log) == {(ref, FAMILY) for ref in REFS}
