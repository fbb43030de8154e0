"""Workflows as real runs use them: runs of others, private buckets, variants, pages, forks, downstreams.

The sample stands in for ROCm's artifacts, which lie packed in a bucket that refuses whoever has no keys.
Torch refs are a downstream's own, with names and settings of their own and nothing that brings ROCm along.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from pytorch_build.lock.source_lock import SourceLock
from tests.kit.artifact_archives import pack_all
from tests.kit.clones import FAMILY, SERIES, TAG
from tests.kit.s3_servers import S3Server
from tests.kit.servers import served
from tests.kit.workflow_engine import ACT, TRITON, Engine, Run, leave_out_other_families, pull_request

pytestmark = [ACT, pytest.mark.nightly]

ARTIFACT_RUN = "17"
BUILT_RUN = "2001"
TEXTS = Path(__file__).with_name("texts")
# A name that cannot be a file's.
REF = "mini/two"
REF_IN_NAMES = "mini-two"
SMOKE_TEST = f"test_smoke-{REF_IN_NAMES}-{TAG}"
ROCM_TEST = f"test_rocm-{TAG}"
REFS = (TEXTS / "mini-refs.toml").read_text()
# A downstream's own data: its bucket, its machines, its refs.
DOWNSTREAM = (TEXTS / "downstream.toml").read_text()

# What a fork is dispatched with, which has no bucket and no artifacts.
FORK_INPUTS = {
    "linux_amdgpu_families": FAMILY,
    "windows_amdgpu_families": "none",
    "build_pytorch": "true",
    "pytorch_git_refs": "mini",
    "pytorch_python_versions": SERIES,
    **TRITON,
}
TEST_INPUTS = {
    "amdgpu_family": FAMILY,
    "test_runs_on": "our-mi300",
    "python_version": SERIES,
}
KEEP_RESULTS = {"aws_role": "run-outputs"}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A downstream's repository and its private bucket."""

    engine: Engine
    server: S3Server
    bucket: str

    @property
    def store(self) -> str:
        """The bucket, as options name it."""
        return f"s3://{self.bucket}"

    @property
    def folder(self) -> Path:
        """Where the server keeps the bucket."""
        assert self.server.folder is not None
        return self.server.folder / self.bucket

    def dispatch(self, run_id: str, workflow: str = "ci.yml", **inputs: str) -> Run:
        """Run a workflow as somebody who dispatches it; return the run, with what it left in the bucket."""
        payload = {"inputs": inputs, "ref": "refs/heads/main"}
        run = self.engine.run("workflow_dispatch", run_id, payload, workflow=workflow)
        return replace(run, store=self.folder)

    def pull_request(self, run_id: str, *labels: str, request: Mapping[str, str]) -> Run:
        """Run CI for a pull request of this repository, which has to pass."""
        payload = pull_request(*labels, head=self.engine.repository)
        run = self.engine.run("pull_request", run_id, payload, request=request)
        assert run.exit_code == 0, run.problems()
        return replace(run, store=self.folder)


@pytest.fixture(scope="module")
def site(rclone_server: S3Server, split_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    bucket = rclone_server.make_bucket()
    assert rclone_server.folder is not None
    pack_all(split_artifacts, rclone_server.folder / bucket / f"{ARTIFACT_RUN}-linux")
    data = DOWNSTREAM.format(bucket=bucket, series=SERIES, family=FAMILY)
    engine = Engine.create(
        tmp_path_factory.mktemp("downstream"),
        repository="example/wheels",
        config=data + REFS + leave_out_other_families(),
        variables=variables_without_keys(rclone_server),
        # Only jobs that assume a role have any.
        keys=credentials_file(rclone_server),
        settings={"READ_ROLE": "reads"},
    )
    return Site(engine=engine, server=rclone_server, bucket=bucket)


def variables_without_keys(server: S3Server) -> dict[str, str]:
    """Return the variables that lead to a server, but for its keys."""
    return {name: value for name, value in server.variables.items() if "KEY" not in name}


def credentials_file(server: S3Server) -> str:
    """Return the text of a credentials file with the keys of a server."""
    return f"[default]\naws_access_key_id={server.access_key}\naws_secret_access_key={server.secret_key}\n"


@pytest.fixture(scope="module")
def build_run(site: Site) -> Run:
    """Run CI for a pull request that asks for PyTorch, on the artifacts of a run in a private bucket."""
    request = {
        "pytorch_git_refs": REF,
        "pytorch_components": "torch",
        "artifact_run_id": ARTIFACT_RUN,
        "artifact_store": site.store,
    }
    return site.pull_request(BUILT_RUN, "build:pytorch", request=request)


def read_lock(run: Run) -> SourceLock:
    """Read a run's source lock."""
    path = run.folder / "manifests" / f"source-lock-{REF_IN_NAMES}.json"
    return SourceLock.model_validate_json(path.read_text(encoding="utf-8"))


def component_wheel(run: Run, component: str) -> Mapping[str, Any]:
    """Return what its record says of a component's own wheel; wheels of device code follow it there."""
    record = run.record(f"build_{component}-{REF_IN_NAMES}-{TAG}")
    assert record["status"] == "ok"
    wheel: Mapping[str, Any] = record["files"][0]
    return wheel


def test_refuses_whoever_has_no_keys(site: Site, build_run: Run) -> None:
    index = build_run.folder / "python" / FAMILY / "index.html"
    assert index.is_file()

    key = index.relative_to(site.folder).as_posix()
    with pytest.raises(HTTPError):
        urlopen(f"{site.server.endpoint}/{site.bucket}/{key}")  # noqa: S310 - of the server above


def test_jobs_that_build_or_test_assume_no_role(build_run: Run) -> None:
    jobs = re.findall(r"^\[.*?([^/\]]+?) *\].*Run Main Assume", build_run.log, re.MULTILINE)

    assert set(jobs) == {"Plan", "Fetch", "Publish", "Summary"}


def test_builds_and_tests_rocm_from_the_artifacts_of_another_run(build_run: Run) -> None:
    plan = build_run.folder / "manifests" / "plan.json"

    assert f'"run_id": "{ARTIFACT_RUN}"' in plan.read_text(encoding="utf-8")
    assert build_run.record("build_rocm")["status"] == "ok"
    assert build_run.record(ROCM_TEST)["status"] == "ok"


@pytest.mark.parametrize("component", ["triton", "torch"])
def test_builds_what_the_source_lock_says(build_run: Run, component: str) -> None:
    version = read_lock(build_run).version(component, gpu=True)

    assert component_wheel(build_run, component)["version"] == version


def test_builds_and_tests_pytorch_on_that_rocm(build_run: Run) -> None:
    assert {"amd_torch_device_gfx942", "torch", "triton"} < build_run.distributions()
    assert build_run.record(SMOKE_TEST)["status"] == "ok"


def test_every_job_takes_its_commits_from_the_one_lock(build_run: Run) -> None:
    assert build_run.log.count(f"source lock of {REF}: resolved") == 1


def test_stores_pages_and_findings(build_run: Run) -> None:
    files = build_run.files()

    assert f"python/{FAMILY}/index.html" in files
    assert f"reports/{FAMILY}/findings.json" in files


def test_no_log_and_no_file_of_a_run_has_the_keys(site: Site, build_run: Run) -> None:
    secret_key = site.server.secret_key
    assert secret_key not in build_run.log

    paths = [build_run.folder / name for name in build_run.files()]
    text_files = [path for path in paths if path.suffix in {".json", ".html", ".log", ".txt"}]
    assert text_files
    for path in text_files:
        assert secret_key.encode() not in path.read_bytes(), path


# A dispatch that tests: PyTorch of a page, ROCm of an index, ROCm of a run.


def test_wheels_of_a_page_are_tested_and_their_results_are_kept(site: Site, build_run: Run) -> None:
    torch_wheel = component_wheel(build_run, "torch")

    with served(build_run.folder / "python" / FAMILY) as url:
        run = site.dispatch(
            "2101",
            "test_pytorch_wheels.yml",
            pytorch_git_ref=REF,
            torch_version=torch_wheel["version"],
            source_lock=read_lock(build_run).compact(),
            store=site.store,
            package_find_links_url=f"{url}/index.html",
            **TEST_INPUTS,
            **KEEP_RESULTS,
        )

    assert run.exit_code == 0, run.problems()
    record = run.record(SMOKE_TEST)
    assert record["status"] == "ok"
    assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]


def test_rocm_of_an_index_is_tested(site: Site, build_run: Run) -> None:
    with served(build_run.folder / "python" / FAMILY) as url:
        run = site.dispatch(
            "2201",
            "test_rocm_wheels.yml",
            store=site.store,
            package_index_url=f"{url}/simple/",
            **TEST_INPUTS,
            **KEEP_RESULTS,
        )

    assert run.exit_code == 0, run.problems()
    assert run.record(ROCM_TEST)["status"] == "ok"


def test_a_run_of_another_day_is_tested_by_its_id_alone(site: Site, build_run: Run) -> None:
    run = site.dispatch(
        build_run.run_id,
        "test_rocm_wheels.yml",
        store=site.store,
        **TEST_INPUTS,
    )

    assert run.exit_code == 0, run.problems()


# Other kinds of runs


def run_variant(site: Site) -> Run:
    """Run CI for a pull request that asks for ROCm with the address sanitizer, and not for PyTorch."""
    # The sample brings artifacts of its own, of every variant.
    return site.pull_request("2301", "ci:asan", request={"pytorch_git_refs": "sample"})


@pytest.fixture(scope="module")
def variant(site: Site) -> Run:
    return run_variant(site)


def read_variant(run: Run, group: str) -> str:
    """Return the variant of ROCm that a group of a run was built as; "" for the usual one."""
    path = run.folder / "manifests" / group / "build_rocm.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    variant: str = record["cell"].get("build_variant", "")
    return variant


def test_a_variant_is_built_and_stored_apart(variant: Run) -> None:
    groups = {name.split("/")[1] for name in variant.files() if name.startswith("python/")}

    assert groups == {FAMILY, f"{FAMILY}-asan"}
    assert read_variant(variant, FAMILY) == ""
    assert read_variant(variant, f"{FAMILY}-asan") == "asan"


def test_a_pull_request_without_the_label_builds_no_pytorch(variant: Run) -> None:
    assert "build_rocm" in variant.sessions()
    assert "build_torch" not in variant.sessions()
    assert variant.record(ROCM_TEST)["status"] == "ok"


def packages_with_times(run: Run) -> dict[str, int]:
    """Return the wheels and sdists of a run, with when each was written."""
    times = {}
    for name in run.files():
        if name.endswith((".whl", ".tar.gz")):
            times[name] = (run.folder / name).stat().st_mtime_ns
    return times


def test_a_repeated_run_writes_no_package_again(site: Site, variant: Run) -> None:
    packages = packages_with_times(variant)

    repeated = run_variant(site)

    assert packages_with_times(repeated) == packages


def test_maintenance_mirrors_what_wheels_require_and_lists_what_is_old(site: Site, build_run: Run) -> None:
    run = site.dispatch("2401", "maintenance.yml", delete="false", at_most="10")

    mirror = site.folder / "python-deps" / "simple" / "index.html"
    assert run.exit_code == 0, run.problems()
    assert re.search(r"mirror_deps: \d+ files in s3://", run.log)
    assert f"index: the pages of {site.store} list what is there" in run.log
    assert re.search(r"retention: .* (deletes nothing from|would be deleted from) s3:", run.log)
    assert build_run.folder.is_dir()
    assert mirror.is_file()


def test_a_fork_builds_on_the_index(build_run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    fork = Engine.create(tmp_path_factory.mktemp("fork"), repository="somebody/TheRock", config="")
    fork.add_file("pytorch-build.toml", REFS)
    payload = {"inputs": FORK_INPUTS, "ref": "refs/heads/main"}

    with served(build_run.folder / "python" / FAMILY) as url:
        use_index(fork, f"{url}/simple/")
        run = fork.run("workflow_dispatch", "2501", payload)

    assert run.exit_code == 0, run.problems()
    assert "the release index nightly" in run.log
    assert "build_rocm" not in run.sessions()
    assert {"build_triton", "check_wheels"} <= run.sessions()
    assert not run.store.exists()


def use_index(fork: Engine, url: str) -> None:
    """Replace the nightly index, which is far away and changes."""
    name = "rocm_packaging/rocm_indexes.toml"
    indexes = (fork.clone / name).read_text(encoding="utf-8")
    local_indexes = indexes.replace("https://nightly.repo.amd.com/rocm/whl-next/", url)
    assert local_indexes != indexes
    fork.add_file(name, local_indexes)
