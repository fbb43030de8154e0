"""Where ROCm comes from, from runs that are made up and artifacts that lie in folders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan import origins
from ci.plan.data import RocmData
from ci.plan.origins import Search, completed, groups_that_need_rocm
from core.cli.options import Common
from core.errors import FatalError, MissingInputError, UsageError
from core.run import Platform
from core.run.plan import Plan, PlannedGroup, PlannedJob, RocmOrigin, RocmPackages
from tests.kit.github_runs import FakeGitHub, github_run
from tests.kit.planning import (
    REPOSITORY,
    ci_data,
    families_by_stage,
    plan_dispatch,
    plan_event,
    pull_request,
    reason_left_out,
)
from tests.kit.servers import served

FAMILIES = ("gfx94X-dcgpu", "gfx1151")
ASAN_WORKFLOW = "multi_arch_ci_asan.yml"
INDEX_URL = "https://packages.example/whl/"

LINUX = "linux_x86_64"
WINDOWS = "win_amd64"


def variant(platform: Platform, family: str, *, group: str = "") -> PlannedGroup:
    """Return a group of a plan that needs ROCm."""
    return PlannedGroup(
        platform=platform,
        artifact_group=group or family,
        gpu_family=family,
        gpu_targets=(),
        build_runner="",
        reason="",
    )


ON_LINUX = (variant("linux", "gfx94X-dcgpu"), variant("linux", "gfx1151"))
ON_WINDOWS = variant("windows", "gfx1151")
WITH_ASAN = variant("linux", "gfx94X-dcgpu", group="gfx94X-dcgpu-asan")


@dataclass
class World:
    """Runs that GitHub knows, artifacts in a store, and the notes of a search."""

    root: Path
    github: FakeGitHub = field(default_factory=FakeGitHub)
    notes: list[str] = field(default_factory=list)

    def put_run(
        self, run_id: str, *families: str, platform: Platform = "linux", complete: bool = True
    ) -> None:
        """Put a run's artifacts into the store; incomplete ones have no digest beside them."""
        folder = self.root / "store" / f"{run_id}-{platform}"
        folder.mkdir(parents=True, exist_ok=True)
        names = ["base_lib_generic", *(f"blas_lib_{family}" for family in families)]
        for number, name in enumerate(names, 1):
            archive = folder / f"{name}.tar.zst"
            archive.write_bytes(name.encode())
            if complete:
                line = f"{number:064x}  {archive.name}\n"
                archive.with_name(f"{archive.name}.sha256sum").write_text(line, encoding="utf-8")

    def search(
        self,
        repository: str = REPOSITORY,
        *,
        data: RocmData | None = None,
        requested: RocmPackages | None = None,
    ) -> Search:
        """Return a search for a plan's ROCm, of which the event requests something or nothing."""
        return Search(
            requested=requested or RocmPackages(version="10.1.0.dev0"),
            repository=repository,
            data=data or ci_data().rocm,
            github=cast("Any", self.github),
            common=Common(root=self.root, store="store"),
            notes=self.notes,
        )

    def search_requested_run(self, run_id: str = "17") -> Search:
        """Return a search where the event requests a run."""
        return self.search(requested=RocmPackages(version="10.1.0.dev0", artifact_run_id=run_id))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def offer(
    folder: Path, version: str, *platforms: str, targets: Sequence[str] = ("gfx942", "gfx1151")
) -> None:
    """Put pages of split ROCm of a version into a folder that is served; files are never asked for."""
    files = {"rocm": [f"rocm-{version}.tar.gz"]}
    for name in ("core", "libraries", "devel", *(f"device-{target}" for target in targets)):
        stem = f"rocm_sdk_{name.replace('-', '_')}-{version}-py3-none"
        files[f"rocm-sdk-{name}"] = [f"{stem}-{platform}.whl" for platform in platforms]

    for name, filenames in files.items():
        page = folder / name / "index.html"
        page.parent.mkdir(exist_ok=True)
        links = [f'<a href="{filename}#sha256={"a" * 64}">{filename}</a>' for filename in filenames]
        with page.open("a", encoding="utf-8") as stream:
            stream.write("".join(links))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is served in the place of every release index."""
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "index.html").write_text("", encoding="utf-8")
    with served(folder) as url:
        monkeypatch.setattr(origins, "release_index_url", lambda _name, _family: url)
        yield folder


def run_ids(rocm_origins: Sequence[RocmOrigin]) -> set[str | None]:
    return {origin.run_id for origin in rocm_origins}


def run_ids_of_groups(rocm_origins: Sequence[RocmOrigin]) -> dict[str, str | None]:
    return {origin.artifact_group: origin.run_id for origin in rocm_origins}


def versions(rocm_origins: Sequence[RocmOrigin]) -> set[str | None]:
    return {origin.version for origin in rocm_origins}


def groups_of(
    rows: Sequence[PlannedGroup] | Sequence[PlannedJob] | Sequence[RocmOrigin],
) -> set[tuple[str, str]]:
    """Return the platforms and artifact groups of a plan's rows."""
    return {(row.platform, row.artifact_group) for row in rows}


# --- The newest run --------------------------------------------------------------------------


def test_takes_the_newest_run_that_succeeded_with_every_family(world: World) -> None:
    world.github.known_runs = [
        github_run("24", fork=True),
        github_run("23", conclusion="failure"),
        *(github_run(number) for number in ("22", "21", "20", "19")),
    ]
    for run_id in ("24", "23", "20", "19"):
        world.put_run(run_id, *FAMILIES)
    world.put_run("22", "gfx1151")
    world.put_run("21", *FAMILIES, complete=False)

    rocm_origins = world.search().origins({"release": ON_LINUX})

    assert len(rocm_origins) == len(ON_LINUX)
    assert run_ids(rocm_origins) == {"20"}
    assert rocm_origins[0].repository == REPOSITORY
    assert rocm_origins[0].store == "store"
    assert rocm_origins[0].version == "10.1.0.dev0"
    assert world.notes == []


def test_pins_a_run_with_the_digests_of_each_familys_artifacts(world: World) -> None:
    world.github.known_runs = [github_run("20")]
    world.put_run("20", *FAMILIES)

    first, second = world.search().origins({"release": ON_LINUX})

    assert first.artifacts == {
        "base_lib_generic.tar.zst": f"{1:064x}",
        "blas_lib_gfx94X-dcgpu.tar.zst": f"{2:064x}",
    }
    assert second.artifact_group == "gfx1151"
    assert list(second.artifacts) == ["base_lib_generic.tar.zst", "blas_lib_gfx1151.tar.zst"]


def test_takes_only_a_run_with_every_platform_of_the_plan(world: World) -> None:
    world.github.known_runs = [github_run("22"), github_run("21")]
    world.put_run("22", *FAMILIES)
    world.put_run("21", *FAMILIES)
    world.put_run("21", "gfx1151", platform="windows")

    rocm_origins = world.search().origins({"release": (*ON_LINUX, ON_WINDOWS)})

    assert {(origin.platform, origin.run_id) for origin in rocm_origins} == {
        ("linux", "21"),
        ("windows", "21"),
    }


# --- A requested run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (github_run("17", conclusion="failure"), "failure"),
        (github_run("17", status="in_progress", conclusion=""), "in_progress"),
        (github_run("17", ASAN_WORKFLOW), "asan"),
    ],
    ids=["failed", "running", "other variant"],
)
def test_refuses_a_requested_run_that_did_not_build_what_is_needed(
    world: World, run: Any, reason: str
) -> None:
    world.github.known_runs = [github_run("21"), run]
    world.put_run("17", *FAMILIES)

    with pytest.raises(MissingInputError, match="run 17") as caught:
        world.search_requested_run().origins({"release": ON_LINUX})

    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("families", "platform", "complete", "reason"),
    [
        ((), "linux", True, "gfx94X-dcgpu"),
        (("gfx94X-dcgpu",), "linux", True, "gfx1151"),
        (FAMILIES, "linux", False, "3 artifacts"),
        (FAMILIES, "windows", True, "17-linux"),
    ],
)
def test_refuses_a_requested_run_that_lacks_artifacts(
    world: World, families: tuple[str, ...], platform: Platform, *, complete: bool, reason: str
) -> None:
    world.github.known_runs = [github_run("17")]
    world.put_run("17", *families, platform=platform, complete=complete)

    with pytest.raises(MissingInputError, match="run 17") as caught:
        world.search_requested_run().origins({"release": ON_LINUX})

    assert reason in caught.value.message


def test_refuses_a_requested_run_that_github_does_not_have(world: World) -> None:
    with pytest.raises(MissingInputError, match="run 17"):
        world.search_requested_run().origins({"release": ON_LINUX})


def test_names_a_usable_run_in_the_place_of_the_requested_one(world: World) -> None:
    world.github.known_runs = [github_run("21"), github_run("17", conclusion="failure")]
    world.put_run("21", *FAMILIES)

    with pytest.raises(MissingInputError, match="run 17") as caught:
        world.search_requested_run().origins({"release": ON_LINUX})

    assert "21" in caught.value.hint


def test_says_that_no_other_run_can_be_used_either(world: World) -> None:
    world.github.known_runs = [github_run("17", conclusion="failure")]

    with pytest.raises(MissingInputError, match="run 17") as caught:
        world.search_requested_run().origins({"release": ON_LINUX})

    assert "No other run" in caught.value.hint


def test_takes_a_requested_run_before_a_newer_one(world: World) -> None:
    world.github.known_runs = [github_run("21"), github_run("17")]
    world.put_run("21", *FAMILIES)
    world.put_run("17", *FAMILIES)

    rocm_origins = world.search_requested_run().origins({"release": ON_LINUX})

    assert run_ids(rocm_origins) == {"17"}


def test_takes_a_run_that_github_does_not_have_from_a_named_store(world: World) -> None:
    world.put_run("mine", *FAMILIES)
    requested = RocmPackages(
        version="10.1.0.dev0",
        artifact_run_id="mine",
        artifact_store="store",
        artifact_repository="acme/rocm",
    )

    rocm_origins = world.search(requested=requested).origins({"release": ON_LINUX})

    assert run_ids(rocm_origins) == {"mine"}
    assert rocm_origins[0].repository == "acme/rocm"


# --- Build variants --------------------------------------------------------------------------


@pytest.fixture
def runs_of_two_variants(world: World) -> World:
    world.github.known_runs = [github_run("22"), github_run("21", ASAN_WORKFLOW)]
    world.put_run("22", *FAMILIES)
    world.put_run("21", *FAMILIES)
    return world


def test_takes_each_variant_from_the_workflow_that_builds_it(runs_of_two_variants: World) -> None:
    rocm_origins = runs_of_two_variants.search().origins({"release": ON_LINUX, "asan": (WITH_ASAN,)})

    assert run_ids_of_groups(rocm_origins) == {
        "gfx94X-dcgpu": "22",
        "gfx1151": "22",
        "gfx94X-dcgpu-asan": "21",
    }


def test_a_requested_run_serves_the_variant_that_it_built(runs_of_two_variants: World) -> None:
    search = runs_of_two_variants.search_requested_run("21")

    rocm_origins = search.origins({"release": ON_LINUX, "asan": (WITH_ASAN,)})

    run_ids_by_group = run_ids_of_groups(rocm_origins)
    assert run_ids_by_group["gfx94X-dcgpu-asan"] == "21"
    assert run_ids_by_group["gfx94X-dcgpu"] == "22"


def test_tells_what_was_tried_for_a_variant_that_nobody_builds(world: World) -> None:
    with pytest.raises(MissingInputError, match="tsan") as caught:
        world.search().origins({"tsan": (WITH_ASAN,)})

    assert "newest:" in caught.value.message
    assert "index:" in caught.value.message


# --- Release indexes -------------------------------------------------------------------------


def test_a_fork_takes_rocm_from_the_release_index(world: World, index: Path) -> None:
    offer(index, "10.1.0a20261121", LINUX)
    world.github.known_runs = [github_run("21")]
    world.put_run("21", *FAMILIES)

    origin, _ = world.search("somebody/a-fork").origins({"release": ON_LINUX})

    assert origin.index_url is not None
    assert origin.index_url.startswith("http://127.0.0.1")
    assert origin.version == "10.1.0a20261121"
    assert origin.artifacts["rocm-10.1.0a20261121.tar.gz"] == "a" * 64
    assert origin.run_id is None
    # A digest pins a run's artifacts alone.
    assert "digest" not in origin.row


def test_a_repository_may_say_what_is_tried(world: World, index: Path) -> None:
    offer(index, "10.1.0a20261121", LINUX)
    world.github.known_runs = [github_run("21")]
    world.put_run("21", *FAMILIES)
    data = ci_data().rocm.model_copy(update={"order": ("newest",)})

    rocm_origins = world.search("acme/x", data=data).origins({"release": ON_LINUX})

    assert run_ids(rocm_origins) == {"21"}


def test_takes_nothing_from_an_index_where_artifacts_of_a_run_are_required(world: World, index: Path) -> None:
    offer(index, "10.1.0a20261121", LINUX)
    requested = RocmPackages(version="10.1.0.dev0", use_prebuilt_artifacts=True)

    with pytest.raises(MissingInputError, match="use_prebuilt_artifacts"):
        world.search("acme/x", requested=requested).origins({"release": ON_LINUX})


def test_takes_rocm_from_the_index_where_no_run_is_found_and_notes_it(world: World, index: Path) -> None:
    world.github.silent = True
    offer(index, "10.1.0a20261121", LINUX, WINDOWS)

    rocm_origins = world.search().origins({"release": (*ON_LINUX, ON_WINDOWS)})

    assert versions(rocm_origins) == {"10.1.0a20261121"}
    assert WINDOWS in " ".join(rocm_origins[2].artifacts)
    (note,) = world.notes
    assert "GitHub cannot be reached" in note


@pytest.mark.usefixtures("index")
def test_refuses_an_index_without_any_rocm(world: World) -> None:
    with pytest.raises(MissingInputError, match=r"http://127\.0\.0\.1"):
        world.search("a/b").origins({"release": ON_LINUX})


def test_takes_the_newest_version_that_every_platform_and_family_has(world: World, index: Path) -> None:
    offer(index, "10.1.0a20261122", LINUX)
    offer(index, "10.1.0a20261121", LINUX, WINDOWS, targets=("gfx942",))
    offer(index, "10.1.0a20261120", LINUX, WINDOWS)

    for_both_platforms = world.search("a/b").origins({"release": (*ON_LINUX, ON_WINDOWS)})
    for_linux = world.search("a/b").origins({"release": ON_LINUX})

    assert versions(for_both_platforms) == {"10.1.0a20261120"}
    assert versions(for_linux) == {"10.1.0a20261122"}


def test_takes_the_version_that_the_event_names(world: World, index: Path) -> None:
    offer(index, "10.0.0", LINUX)
    offer(index, "10.0.1", LINUX)
    requested = RocmPackages(version="10.0.0", version_named=True)

    rocm_origins = world.search("a/b", requested=requested).origins({"release": ON_LINUX})

    assert versions(rocm_origins) == {"10.0.0"}


def test_refuses_a_version_that_the_index_does_not_have(world: World, index: Path) -> None:
    offer(index, "10.0.0", LINUX)
    requested = RocmPackages(version="9.9", version_named=True)

    with pytest.raises(MissingInputError, match=r"9\.9") as caught:
        world.search("a/b", requested=requested).origins({"release": ON_LINUX})

    assert "gfx94X-dcgpu on linux, gfx1151 on linux" in caught.value.message


def test_a_requested_index_is_the_only_one(world: World, index: Path) -> None:
    offer(index, "10.1.0", LINUX)
    world.github.known_runs = [github_run("21")]
    world.put_run("21", *FAMILIES)

    with served(index) as url:
        requested = RocmPackages(version="10.1.0.dev0", index_url=url)
        rocm_origins = world.search(requested=requested).origins({"release": ON_LINUX})

    assert {origin.index_url for origin in rocm_origins} == {url}


def test_refuses_to_take_rocm_from_an_index_and_from_a_run() -> None:
    with pytest.raises(UsageError, match="both"):
        plan_dispatch(linux_amdgpu_families="all", rocm_package_index_url="https://a/", artifact_run_id="17")


def test_refuses_an_address_that_is_none() -> None:
    with pytest.raises(UsageError, match="address"):
        plan_dispatch(linux_amdgpu_families="all", rocm_package_index_url="https://$(id)/")


def test_refuses_data_with_an_unknown_way_to_find_rocm() -> None:
    with pytest.raises(ValueError, match="newest"):
        RocmData.model_validate({**ci_data().rocm.model_dump(), "order": ("oldest",)})


def test_refuses_a_release_type_without_artifact_runs() -> None:
    with pytest.raises(FatalError, match="'release'"):
        ci_data().rocm.artifact_runs("release")


# --- A plan with its ROCm --------------------------------------------------------------------


def origins_of_index(plan: Plan) -> list[RocmOrigin]:
    """Return an index as the origin of all ROCm that a plan needs."""
    return [
        RocmOrigin(
            platform=group.platform,
            artifact_group=group.artifact_group,
            index_url=INDEX_URL,
            version="10.1",
        )
        for groups in groups_that_need_rocm(plan).values()
        for group in groups
    ]


def test_does_not_build_or_test_rocm_that_an_index_has() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch"))

    plan_with_rocm = completed(plan, origins_of_index(plan), ["a note"])

    assert set(families_by_stage(plan_with_rocm)) == {"build_pytorch", "test_pytorch"}
    assert groups_of(plan_with_rocm.variants) == {("linux", "gfx94X-dcgpu"), ("windows", "gfx110X-all")}
    assert INDEX_URL in reason_left_out(plan_with_rocm, "build_rocm, gfx94X-dcgpu on linux")


def test_a_completed_plan_has_its_version_index_and_notes() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch"))

    plan_with_rocm = completed(plan, origins_of_index(plan), ["a note"])

    assert plan_with_rocm.rocm.version == "10.1"
    assert plan_with_rocm.notes[-1] == "a note"
    assert plan_with_rocm.enable_build_jobs.value
    for job in plan_with_rocm.matrix("linux", "build_pytorch"):
        assert plan_with_rocm.rocm_row(job)["index_url"] == INDEX_URL


def test_a_forks_job_starts_with_pytorch_where_an_index_has_rocm() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch", head="somebody/a-fork"))

    (job,) = completed(plan, origins_of_index(plan)).matrix("linux", "build_pytorch")

    assert job.sessions[0] == "build_triton"


def test_a_plan_of_rocm_alone_is_empty_where_an_index_has_it() -> None:
    plan = plan_event("pull_request", pull_request())

    plan_with_rocm = completed(plan, origins_of_index(plan))

    assert plan_with_rocm.jobs == ()
    assert plan_with_rocm.variants == ()
    assert not plan_with_rocm.enable_build_jobs.value
    assert "build:pytorch" in plan_with_rocm.enable_build_jobs.reason


def test_the_sample_brings_its_own_rocm() -> None:
    assert (
        groups_that_need_rocm(plan_dispatch(linux_amdgpu_families="gfx94x", pytorch_git_refs="sample")) == {}
    )


LABELS = ("build:pytorch", "ci:asan", "ci:host-asan", "gfx1151")


@given(labels=st.sets(st.sampled_from(LABELS)), data=st.data())
def test_completion_moves_jobs_of_indexed_rocm_to_what_is_left_out(
    labels: set[str], data: st.DataObject
) -> None:
    plan = plan_event("pull_request", pull_request(*sorted(labels)))
    indexed = [origin for origin in origins_of_index(plan) if data.draw(st.booleans())]

    plan_with_rocm = completed(plan, indexed)

    assert len(plan_with_rocm.jobs) + len(plan_with_rocm.left_out) == len(plan.jobs) + len(plan.left_out)
    assert groups_of(plan_with_rocm.variants) == groups_of(plan_with_rocm.jobs)
    assert Plan.model_validate_json(plan_with_rocm.model_dump_json()) == plan_with_rocm

    groups_of_index = groups_of(indexed)
    for job in plan_with_rocm.jobs:
        if (job.platform, job.artifact_group) in groups_of_index:
            assert not {"fetch_artifacts", "build_rocm", "test_rocm"} & set(job.sessions)
            assert plan_with_rocm.rocm_row(job)["index_url"] == INDEX_URL
