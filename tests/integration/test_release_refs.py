"""A release of real torch refs, as the data has them, on two families' artifacts in a private bucket.

Local repositories stand in for GitHub's (``GIT_MIRRORS``): what the refs data says of `nightly` and
`release/2.10` (hosts, branches, pins, components) is followed; the sources are the sample's, whose
wheels are compiled and then refused for their size, as only the ref `sample` may make small ones.
"""

import json
import re
from pathlib import Path

import pytest

from core import process
from pytorch_build.refs.torch_refs import PROJECTS
from pytorch_build.sample import ensure_repositories
from tests.kit.artifact_archives import pack_all
from tests.kit.clones import SERIES
from tests.kit.s3_servers import S3Server
from tests.kit.workflow_engine import ACT, Engine

FAMILIES = ("gfx94X-dcgpu", "gfx110X-all")
REFS = {"nightly": "2.14.0a0", "release/2.10": "2.10.0"}
GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "commit.gpgsign=false")
RUN = "17"
INPUTS = {
    "linux_amdgpu_families": ";".join(FAMILIES),
    "pytorch_git_refs": " ".join(REFS),
    "pytorch_python_versions": SERIES,
    "artifact_run_id": RUN,
}
DATA = Path(__file__).with_name("texts").joinpath("release-config.toml").read_text()
FAMILY_DATA = """
[runners.families.{family}.linux]
test_runner = "our-mi300"
"""


def branch(repository: Path, scratch: Path, name: str, edits: dict[str, dict[str, str]]) -> str:
    """Commit edits (file -> old text -> new text) to a branch of a bare repository; give the commit."""
    tree = scratch / f"{repository.name}-{name.replace('/', '-')}"
    process.capture([*GIT, "clone", "--quiet", repository, tree])
    for file, changes in edits.items():
        text = (tree / file).read_text(encoding="utf-8")
        for old, new in changes.items():
            text = text.replace(old, new)
        (tree / file).write_text(text, encoding="utf-8")
    process.capture([*GIT, "commit", "--quiet", "--all", "-m", f"Branch {name}"], cwd=tree)
    process.capture([*GIT, "push", "--quiet", "--force", "origin", f"HEAD:refs/heads/{name}"], cwd=tree)
    return process.capture([*GIT, "rev-parse", "HEAD"], cwd=tree).stdout.strip()


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the hosts' repositories: nightly has newer companions than release/2.10, as upstream's has."""
    scratch = tmp_path_factory.mktemp("trees")
    repositories = ensure_repositories(scratch / "sample")
    hosts = {
        f"sample:{name}": f"https://github.com/{owner}/{name}"
        for name, owner in (("apex", "ROCm"), ("vision", "pytorch"), ("audio", "pytorch"))
    }
    related = process.capture(
        [*GIT, "--git-dir", repositories["torch"], "show", "main:related_commits"]
    ).stdout
    newer = {}
    for name, old, new in (("vision", "0.25.0a0", "0.28.0a0"), ("apex", "1.10.0", "1.14.0")):
        (pinned,) = set(re.findall(rf"\|([0-9a-f]{{40}})\|sample:{name}", related))
        newer[pinned] = branch(repositories[name], scratch, "newer", {"version.txt": {old: new}})
    for ref, version in REFS.items():
        commits = newer if ref == "nightly" else {}
        edits = {"version.txt": {"2.10.0a0": version}, "related_commits": {**hosts, **commits}}
        branch(repositories["torch"], scratch, ref, edits)
    for owner in ("pytorch", "ROCm"):
        for name, path in repositories.items():
            link = scratch / "hosts" / owner / f"{'pytorch' if name == 'torch' else name}.git"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
            if name.startswith("mini"):  # torch's submodules name each other by relative addresses
                link.with_suffix("").symlink_to(path)
    return scratch / "hosts"


@pytest.fixture(scope="module")
def site(
    rclone_server: S3Server, split_artifacts: Path, mirrors: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Engine, Path]:
    bucket = rclone_server.make_bucket()
    assert rclone_server.folder is not None
    folder = rclone_server.folder / bucket
    pack_all(split_artifacts, folder / f"{RUN}-linux")
    machines = "".join(FAMILY_DATA.format(family=family) for family in FAMILIES)
    engine = Engine.cloned(
        tmp_path_factory.mktemp("downstream"),
        repository="example/wheels",
        config=DATA.format(bucket=bucket) + machines,
        variables={**rclone_server.variables, "GIT_MIRRORS": f"https://github.com/={mirrors}/"},
    )
    return engine, folder


def read_locks(folder: Path) -> dict[str, str]:
    found = {}
    for ref in REFS:
        lock = json.loads((folder / f"source-lock-{ref.replace('/', '-')}.json").read_text(encoding="utf-8"))
        versions = {name: one["versions"]["rocm"].partition("+")[0] for name, one in lock["projects"].items()}
        found[ref] = ", ".join(f"{name} {versions[name]}" for name in PROJECTS)
    return found


LOCKED = {
    "nightly": "triton 3.6.0, torch 2.14.0a0, audio 2.10.0a0, vision 0.28.0a0, apex 1.14.0",
    "release/2.10": "triton 3.6.0, torch 2.10.0, audio 2.10.0a0, vision 0.25.0a0, apex 1.10.0",
}


def compiled_and_refused(log: str) -> int:
    """Count the builds whose first wheel was compiled, and refused for its size alone."""
    assert "The checks found 1 errors" in log
    return len(set(re.findall(r"again: nox -s build_triton .*--torch-ref=(\S+) --gpu-family=([\w-]+)", log)))


def test_a_release_from_a_laptop(site: tuple[Engine, Path], tmp_path: Path) -> None:
    engine, folder = site
    words = ["invoke", "release", "--type=nightly", f"--gpu-family={';'.join(FAMILIES)}"]
    words += [f"--torch-ref={','.join(REFS)}", f"--python={SERIES}", f"--store={tmp_path / 'store'}"]
    words += [f"--distribution-store={tmp_path / 'distribution'}", f"--input=artifact_run_id={RUN}"]
    words += [f"--input=artifact_store=s3://{folder.name}", "--keep-going"]
    engine.commit("ci-config.toml", engine.config or "")
    env = {**engine.runner_variables(), **engine.variables, "CI_CONFIG": "ci-config.toml"}
    ran = process.capture(words, cwd=engine.folder / "clone", env=env, check=False, timeout=3600)
    log = ran.stdout + ran.stderr
    assert ran.returncode != 0
    assert read_locks(engine.folder / "clone/out/local-linux/manifests") == LOCKED
    assert len(re.findall(r"test_rocm.* ok ", log)) == 2
    assert compiled_and_refused(log) == 4


@ACT
def test_the_same_release_by_the_workflow(site: tuple[Engine, Path]) -> None:
    engine, folder = site
    inputs = {**INPUTS, "windows_amdgpu_families": "none", "build_pytorch": "true"}
    payload = {"inputs": {**inputs, "artifact_store": f"s3://{folder.name}"}, "ref": "refs/heads/main"}
    ran = engine.run("workflow_dispatch", "3001", payload)
    assert ran.code != 0
    assert read_locks(folder / "3001-linux/manifests") == LOCKED
    for family in FAMILIES:
        record = folder / f"3001-linux/manifests/{family}/build_rocm.json"
        assert json.loads(record.read_text(encoding="utf-8"))["status"] == "ok"
    assert compiled_and_refused(ran.log) == 4
