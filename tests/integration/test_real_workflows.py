"""Workflows as real runs use them: runs of others, private buckets, variants, pages, forks, downstreams.

The sample stands in for ROCm's artifacts, which lie packed in a bucket that refuses whoever has no keys.
Torch refs are a downstream's own, with names and settings of their own and nothing that brings ROCm along.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.kit.artifact_archives import pack_all
from tests.kit.clones import FAMILY, SERIES, TAG
from tests.kit.s3_servers import S3Server
from tests.kit.servers import served
from tests.kit.workflow_engine import ACT, Engine, Ran, others, pull_request

pytestmark = ACT

ARTIFACT_RUN = "17"
REFS = Path(__file__).with_name("texts").joinpath("mini-refs.toml").read_text()
# a downstream's own data: its bucket, its machines, its refs
DOWNSTREAM = Path(__file__).with_name("texts").joinpath("downstream.toml").read_text()


@dataclass(frozen=True, kw_only=True)
class Site:
    engine: Engine
    server: S3Server
    bucket: str

    def dispatch(self, run_id: str, workflow: str = "ci.yml", **inputs: str) -> Ran:
        ran = self.engine.run(
            "workflow_dispatch", run_id, {"inputs": inputs, "ref": "refs/heads/main"}, workflow=workflow
        )
        return replace(ran, store=self.folder)

    @property
    def folder(self) -> Path:
        assert self.server.folder is not None
        return self.server.folder / self.bucket


@pytest.fixture(scope="module")
def site(rclone_server: S3Server, split_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    bucket = rclone_server.make_bucket()
    assert rclone_server.folder is not None
    pack_all(split_artifacts, rclone_server.folder / bucket / f"{ARTIFACT_RUN}-linux")
    engine = Engine.cloned(
        tmp_path_factory.mktemp("downstream"),
        repository="example/wheels",
        config=DOWNSTREAM.format(bucket=bucket, series=SERIES, family=FAMILY) + REFS + others(),
        variables={name: one for name, one in rclone_server.variables.items() if "KEY" not in name},
        # only jobs that assume a role have any
        keys=f"[default]\naws_access_key_id={rclone_server.access_key}\n"
        f"aws_secret_access_key={rclone_server.secret_key}\n",
        settings={"READ_ROLE": "reads"},
    )
    return Site(engine=engine, server=rclone_server, bucket=bucket)


ASKED = {
    "linux_amdgpu_families": FAMILY,
    "windows_amdgpu_families": "none",
    "build_pytorch": "true",
    "pytorch_git_refs": "mini mini/two",
    "pytorch_python_versions": SERIES,
    "pytorch_components": "torch",
    "artifact_run_id": ARTIFACT_RUN,
}


@pytest.fixture(scope="module")
def built(site: Site) -> Ran:
    """Two torch refs on the artifacts of a run in a private bucket."""
    ran = site.dispatch("2001", **ASKED, artifact_store=f"s3://{site.bucket}")
    assert ran.code == 0, ran.problems()
    return ran


def wheels(ran: Ran, name: str) -> list[str]:
    return sorted(
        path.rpartition("/")[2]
        for path in ran.files()
        if path.startswith(f"python/{FAMILY}/{name}-") and path.endswith(".whl")
    )


def test_the_bucket_refuses_whoever_has_no_keys(site: Site, built: Ran) -> None:
    key = f"{built.run_id}-linux/python/{FAMILY}/index.html"
    assert (site.folder / key).is_file()
    with pytest.raises(HTTPError):
        urlopen(f"{site.server.endpoint}/{site.bucket}/{key}")  # noqa: S310 - of the server above


def test_whoever_builds_or_tests_assumes_no_role(built: Ran) -> None:
    assert set(re.findall(r"^\[.*?([^/\]]+?) *\].*Run Main Assume", built.log, re.MULTILINE)) == {
        *("Plan", "Fetch", "Publish", "Summary")
    }


def test_two_refs_are_built_and_tested_on_the_artifacts_of_another_run(built: Ran) -> None:
    assert built.record("build_rocm")["status"] == "ok"
    assert built.record(f"test_rocm-{TAG}")["status"] == "ok"
    for ref in ("mini", "mini-two"):
        for stage in ("build_triton", "build_torch", "test_smoke"):
            assert built.record(f"{stage}-{ref}-{TAG}")["status"] == "ok"
    assert len(wheels(built, "torch")) == 2
    plan = (built.store / f"{built.run_id}-linux" / "manifests" / "plan.json").read_text(encoding="utf-8")
    assert f'"run_id": "{ARTIFACT_RUN}"' in plan


def test_keys_are_in_no_installers_words_and_in_no_log(site: Site, built: Ran) -> None:
    assert site.server.secret_key not in built.log
    reports = [site.folder / f"{built.run_id}-linux" / path for path in built.files()]
    texts = [path.read_bytes() for path in reports if path.suffix in {".json", ".html", ".log", ".txt"}]
    assert texts
    assert not [text for text in texts if site.server.secret_key.encode() in text]


def test_a_run_that_is_run_again_builds_nothing_again(site: Site, built: Ran) -> None:
    before = {path: (site.folder / "2001-linux" / path).stat().st_mtime_ns for path in built.files()}
    again = site.dispatch("2001", **ASKED, artifact_store=f"s3://{site.bucket}")
    assert again.code == 0, again.problems()
    changed = {
        path
        for path in again.files()
        if path.endswith((".whl", ".tar.gz"))
        and (site.folder / "2001-linux" / path).stat().st_mtime_ns != before.get(path)
    }
    assert not changed
    assert "c++ " not in again.log
    assert again.log.count("unchanged") >= 5


TESTED = {"amdgpu_family": FAMILY, "test_runs_on": "our-mi300", "python_version": SERIES}
KEPT = {"upload": "true", "aws_role": "run-outputs"}
PLACES = pytest.mark.parametrize(
    ("setting", "page"),
    [("package_find_links_url", "index.html"), ("package_index_url", "simple/")],
    ids=["page", "index"],
)


@PLACES
def test_wheels_of_a_page_or_an_index_are_tested_by_a_dispatch_and_their_results_are_kept(
    site: Site, built: Ran, setting: str, page: str
) -> None:
    (version,) = [one.split("-")[1] for one in wheels(built, "torch") if "two" not in one]
    run_id = f"21{len(page):02}"
    with served(site.folder / f"{built.run_id}-linux" / "python" / FAMILY) as base:
        ran = site.dispatch(
            run_id,
            "test_pytorch_wheels.yml",
            pytorch_git_ref="mini",
            torch_version=version,
            source_lock=lock_of(site, built, "mini"),
            store=f"s3://{site.bucket}",
            **{**TESTED, **KEPT, setting: f"{base}/{page}"},
        )
    assert ran.code == 0, ran.problems()
    record = ran.record(f"test_smoke-mini-{TAG}")
    assert record["status"] == "ok"
    digests = built.record(f"build_torch-mini-{TAG}")["files"][0]
    assert record["inputs"]["files"][digests["name"]] == digests["sha256"]


@PLACES
def test_rocm_of_a_page_or_index_can_be_tested(site: Site, built: Ran, setting: str, page: str) -> None:
    with served(site.folder / f"{built.run_id}-linux" / "python" / FAMILY) as base:
        ran = site.dispatch(
            f"22{len(page):02}",
            "test_rocm_wheels.yml",
            store=f"s3://{site.bucket}",
            **{**TESTED, **KEPT, setting: f"{base}/{page}"},
        )
    assert ran.code == 0, ran.problems()
    assert ran.record(f"test_rocm-{TAG}")["status"] == "ok"


def test_a_run_of_another_day_is_tested_by_a_dispatch_that_names_it_alone(site: Site, built: Ran) -> None:
    ran = site.dispatch(built.run_id, "test_rocm_wheels.yml", store=f"s3://{site.bucket}", **TESTED)
    assert ran.code == 0, ran.problems()


def lock_of(site: Site, built: Ran, ref: str) -> str:
    from pytorch_build.lock.source_lock import SourceLock

    path = site.folder / f"{built.run_id}-linux" / "manifests" / f"source-lock-{ref.replace('/', '-')}.json"
    return SourceLock.model_validate_json(path.read_text(encoding="utf-8")).compact()


def test_a_variant_is_built_and_stored_apart(site: Site) -> None:
    asked = pull_request("ci:asan", head="example/wheels")
    # the sample brings artifacts of its own, of every variant
    ran = site.engine.run("pull_request", "2301", asked, request={"pytorch_git_refs": "sample"})
    ran = replace(ran, store=site.folder)
    assert ran.code == 0, ran.problems()
    groups = {path.split("/")[1] for path in ran.files() if path.startswith("python/")}
    assert groups == {FAMILY, f"{FAMILY}-asan"}
    records: Sequence[Mapping[str, Any]] = [
        json.loads((site.folder / "2301-linux/manifests" / group / "build_rocm.json").read_text())
        for group in sorted(groups)
    ]
    assert [one["cell"].get("build_variant", "") for one in records] == ["", "asan"]


def test_maintenance_mirrors_what_wheels_require_and_lists_what_is_old(site: Site, built: Ran) -> None:
    ran = site.dispatch("2401", "maintenance.yml", delete="false", at_most="10")
    assert ran.code == 0, ran.problems()
    assert re.search(r"mirror_deps: \d+ files in s3://", ran.log)
    assert f"check_indexes: the pages of s3://{site.bucket} list what is there" in ran.log
    assert re.search(r"retention: .* (deletes nothing from|would be deleted from) s3:", ran.log)
    assert (site.folder / f"{built.run_id}-linux").is_dir()
    assert (site.folder / "python-deps" / "simple" / "index.html").is_file()


def test_a_fork_builds_on_the_index(site: Site, built: Ran, tmp_path_factory: pytest.TempPathFactory) -> None:
    fork = Engine.cloned(tmp_path_factory.mktemp("fork"), repository="somebody/TheRock", config="")
    fork.commit("pytorch-build.toml", REFS)
    indexes = "rocm_packaging/rocm_indexes.toml"
    text = (fork.folder / "clone" / indexes).read_text(encoding="utf-8")
    with served(site.folder / f"{built.run_id}-linux" / "python" / FAMILY) as base:
        # what stands in for the index of today, which is far away and changes
        here = text.replace("https://nightly.repo.amd.com/rocm/whl-next/", f"{base}/simple/")
        fork.commit(indexes, here)
        inputs = {key: value for key, value in ASKED.items() if key != "artifact_run_id"}
        inputs["pytorch_git_refs"] = "mini"
        ran = fork.run("workflow_dispatch", "2501", {"inputs": inputs, "ref": "refs/heads/main"})
    assert here != text
    assert ran.code == 0, ran.problems()
    assert "the release index nightly" in ran.log
    assert "build_rocm" not in sessions_of(ran)
    assert {"build_torch", "check_wheels"} <= sessions_of(ran)
    assert not ran.store.exists()


def sessions_of(ran: Ran) -> set[str]:
    return set(re.findall(r"Running session.* (\w+?)(?:-[\d.]+)?\x1b", ran.log))
