"""Where ROCm comes from, from runs that are made up and artifacts that lie in folders."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.plan import origins
from ci.plan.artifacts import Place, find_place
from ci.plan.data import RocmData
from ci.plan.origins import Search, completed, needs
from core.cli.options import Common
from core.errors import FatalError, MissingInputError, UsageError
from core.run import Platform
from core.run.plan import Plan, RocmOrigin, RocmPackages, Variant
from tests.kit.servers import served
from tests.unit.ci.plan.planning import OURS, RunsOfGitHub, dispatched, known, made_run, planned, pull_request

FAMILIES = ("gfx94X-dcgpu", "gfx1151")


def need(platform: Platform, group: str, gpu_family: str) -> Variant:
    names = {"platform": platform, "artifact_group": group, "gpu_family": gpu_family}
    return Variant(**names, gpu_targets=(), build_runner="", reason="")


NEEDS = tuple(need("linux", one, one) for one in FAMILIES)
WINDOWS = need("windows", "gfx1151", "gfx1151")
ASAN = need("linux", "gfx94X-dcgpu-asan", "gfx94X-dcgpu")
INDEX = "https://packages.example/whl/"


@dataclass
class World:
    root: Path
    hub: RunsOfGitHub = field(default_factory=RunsOfGitHub)
    notes: list[str] = field(default_factory=list)

    def put(self, run_id: str, *names: str, platform: str = "linux", whole: bool = True) -> None:
        folder = self.root / "there" / f"{run_id}-{platform}"
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names, 1):
            (folder / f"{name}.tar.zst").write_bytes(name.encode())
            if whole:
                line = f"{number:064x}  {name}.tar.zst\n"
                (folder / f"{name}.tar.zst.sha256sum").write_text(line, encoding="utf-8")

    def put_run(self, run_id: str, *families: str, **facts: Any) -> None:
        self.put(run_id, "base_lib_generic", *(f"blas_lib_{one}" for one in families), **facts)

    def search(self, repository: str = OURS, what: RocmData | None = None, **asked: Any) -> Search:
        def place(_repository: str, run_id: str, fork: bool, platform: Any, store: str) -> Place:  # noqa: FBT001
            assert not fork
            common = Common(root=self.root, run_id=run_id, platform=platform)
            return find_place(common, store or "there", OURS, fork=False)

        return Search(
            requested=RocmPackages(**{"version": "10.1.0.dev0", **asked}),
            repository=repository,
            release_type="ci",
            data=what or known().rocm,
            github=cast("Any", self.hub),
            place=place,
            notes=self.notes,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def offer(
    folder: Path, version: str, *platforms: str, targets: tuple[str, ...] = ("gfx942", "gfx1151")
) -> None:
    """Put pages of split ROCm of a version into a folder that is served; files are never asked for."""
    names = {"rocm": [f"rocm-{version}.tar.gz"]}
    for name in ("core", "libraries", "devel", *(f"device-{one}" for one in targets)):
        wheel = f"rocm_sdk_{name.replace('-', '_')}-{version}-py3-none"
        names[f"rocm-sdk-{name}"] = [f"{wheel}-{one}.whl" for one in platforms]
    for name, files in names.items():
        page = folder / name / "index.html"
        page.parent.mkdir(exist_ok=True)
        links = "".join(f'<a href="{one}#sha256={"a" * 64}">{one}</a>' for one in files)
        page.write_text((page.read_text(encoding="utf-8") if page.exists() else "") + links, encoding="utf-8")


LINUX, WIN = "linux_x86_64", "win_amd64"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "index.html").write_text("", encoding="utf-8")
    with served(folder) as url:
        monkeypatch.setattr(origins, "release_index_url", lambda _name, _family: url)
        yield folder


def test_the_newest_green_run_with_every_family_is_pinned_with_its_digests(world: World) -> None:
    world.hub.known = [made_run("24", fork=True), made_run("23", conclusion="failure")]
    world.hub.known += [made_run(number) for number in ("22", "21", "20", "19")]
    for number in ("24", "23", "20", "19"):
        world.put_run(number, *FAMILIES)
    world.put_run("22", "gfx1151")
    world.put_run("21", *FAMILIES, whole=False)
    first, second = world.search().origins({"release": NEEDS})
    found = (first.run_id, first.repository, first.store, first.version)
    assert found == ("20", "ROCm/TheRock", "there", "10.1.0.dev0")
    expected = {"base_lib_generic.tar.zst": f"{1:064x}", "blas_lib_gfx94X-dcgpu.tar.zst": f"{2:064x}"}
    assert first.artifacts == expected
    assert (second.artifact_group, list(second.artifacts)[1]) == ("gfx1151", "blas_lib_gfx1151.tar.zst")
    assert "every family" in first.reason
    assert world.notes == []


def test_a_run_has_to_have_every_platform_of_the_plan(world: World) -> None:
    world.hub.known = [made_run("22"), made_run("21")]
    world.put_run("22", *FAMILIES)
    world.put_run("21", *FAMILIES)
    world.put_run("21", "gfx1151", platform="windows")
    found = world.search().origins({"release": (*NEEDS, WINDOWS)})
    assert {(one.platform, one.run_id) for one in found} == {("linux", "21"), ("windows", "21")}


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ({"conclusion": "failure"}, "not green: failure"),
        ({"status": "in_progress", "conclusion": ""}, "not green: in_progress"),
        ({"families": ()}, "no artifacts of gfx94X-dcgpu"),
        ({"families": ("gfx94X-dcgpu",)}, "no artifacts of gfx1151"),
        ({"whole": False}, "3 artifacts are incomplete"),
        ({"platform": "windows"}, "has no artifacts in .*17-linux"),
        ({"known": False}, "has nothing at .*/17"),
        ({"workflow": "multi_arch_ci_asan.yml"}, "builds of the variant asan"),
    ],
)
def test_an_unusable_run_is_named_with_a_usable_one(world: World, spoiled: dict[str, Any], said: str) -> None:
    about = {name: spoiled.pop(name) for name in ("status", "conclusion", "workflow") if name in spoiled}
    world.hub.known = [made_run("21"), *([made_run("17", **about)] if spoiled.pop("known", True) else [])]
    world.put_run("17", *spoiled.pop("families", FAMILIES), **spoiled)
    world.put_run("21", *FAMILIES)
    with pytest.raises(MissingInputError, match=said) as caught:
        world.search(artifact_run_id="17").origins({"release": NEEDS})
    assert "run 17" in caught.value.message
    assert caught.value.hint == "The newest usable run: 21."
    world.hub.known = world.hub.known[1:]
    with pytest.raises(MissingInputError) as caught:
        world.search(artifact_run_id="17").origins({"release": NEEDS})
    assert "No other run can be used" in caught.value.hint


def test_a_requested_run_comes_before_all_others_and_with_a_store_need_not_be_githubs(world: World) -> None:
    world.hub.known = [made_run("21"), made_run("17")]
    for number in ("21", "17", "mine"):
        world.put_run(number, *FAMILIES)
    assert {one.run_id for one in world.search(artifact_run_id="17").origins({"release": NEEDS})} == {"17"}
    search = world.search(artifact_run_id="mine", artifact_store="there", artifact_repository="acme/rocm")
    found = {(one.run_id, one.repository) for one in search.origins({"release": NEEDS})}
    assert found == {("mine", "acme/rocm")}


def test_a_variants_artifacts_are_those_of_its_own_workflow(world: World) -> None:
    world.hub.known = [made_run("22"), made_run("21", "multi_arch_ci_asan.yml")]
    for number in ("22", "21"):
        world.put_run(number, *FAMILIES)
    wanted = {"release": NEEDS, "asan": (ASAN,)}
    found = {one.artifact_group: one.run_id for one in world.search().origins(wanted)}
    assert found == {"gfx94X-dcgpu": "22", "gfx1151": "22", "gfx94X-dcgpu-asan": "21"}
    # the one that is asked for serves the variant that it built
    found = {one.artifact_group: one.run_id for one in world.search(artifact_run_id="21").origins(wanted)}
    assert found["gfx94X-dcgpu-asan"] == "21"
    with pytest.raises(
        MissingInputError, match=r"variant tsan.*\n.*newest: No workflow.*\n.*index: A release index"
    ):
        world.search().origins({"tsan": (ASAN,)})


def test_what_is_tried_is_data_by_repository(world: World, index: Path) -> None:
    offer(index, "10.1.0a20261121", LINUX)
    world.hub.known = [made_run("21")]
    world.put_run("21", *FAMILIES)
    (first, _) = world.search("somebody/a-fork").origins({"release": NEEDS})
    assert first.index_url.startswith("http://127.0.0.1")
    assert (first.version, first.run_id, first.row.get("digest")) == ("10.1.0a20261121", "", None)
    assert first.artifacts["rocm-10.1.0a20261121.tar.gz"] == "a" * 64
    own = known().rocm.model_copy(update={"order": ("newest",)})
    assert world.search("acme/x", own).origins({"release": NEEDS})[0].run_id == "21"
    with pytest.raises(MissingInputError, match="use_prebuilt_artifacts leaves no way"):
        world.search("acme/x", use_prebuilt_artifacts=True).origins({"release": NEEDS})


def test_the_index_comes_after_what_was_tried_in_vain_which_is_told(world: World, index: Path) -> None:
    world.hub.silent = True
    with pytest.raises(MissingInputError, match=r"index: There is no version of rocm at http://127"):
        world.search().origins({"release": NEEDS})
    world.notes.clear()
    offer(index, "10.1.0a20261121", LINUX, WIN)
    found = world.search().origins({"release": (*NEEDS, WINDOWS)})
    assert {one.version for one in found} == {"10.1.0a20261121"}
    assert [one for one in found[2].artifacts if one.endswith(f"{WIN}.whl")]
    (note,) = world.notes
    assert "does not come from newest: GitHub cannot be reached." in note


def test_the_newest_version_that_every_platform_and_family_has_is_taken(world: World, index: Path) -> None:
    offer(index, "10.1.0a20261122", LINUX)
    offer(index, "10.1.0a20261121", LINUX, WIN, targets=("gfx942",))
    offer(index, "10.1.0a20261120", LINUX, WIN)
    found = world.search("a/b").origins({"release": (*NEEDS, WINDOWS)})
    assert {one.version for one in found} == {"10.1.0a20261120"}
    found = world.search("a/b").origins({"release": NEEDS})
    assert {one.version for one in found} == {"10.1.0a20261122"}


def test_a_version_that_the_event_names_is_that_of_the_index(world: World, index: Path) -> None:
    offer(index, "10.0.0", LINUX)
    offer(index, "10.0.1", LINUX)
    search = world.search("a/b", version="10.0.0", version_named=True)
    assert {one.version for one in search.origins({"release": NEEDS})} == {"10.0.0"}
    with pytest.raises(
        MissingInputError, match=r"no ROCm for gfx94X-dcgpu on linux, gfx1151 on linux(.|\n)*9\.9"
    ):
        world.search("a/b", version="9.9", version_named=True).origins({"release": NEEDS})


def test_an_index_that_is_asked_for_is_the_only_one(world: World, index: Path) -> None:
    offer(index, "10.1.0", LINUX)
    world.hub.known = [made_run("21")]
    world.put_run("21", *FAMILIES)
    with served(index) as url:
        found = world.search(index_url=url).origins({"release": NEEDS})
    assert {one.index_url for one in found} == {url}
    with pytest.raises(UsageError, match="both are requested"):
        dispatched(linux_amdgpu_families="all", rocm_package_index_url="https://a/", artifact_run_id="17")
    with pytest.raises(UsageError, match="not a valid address"):
        dispatched(linux_amdgpu_families="all", rocm_package_index_url="https://$(id)/")


def test_data_that_names_a_way_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="newest"):
        RocmData.model_validate({**known().rocm.model_dump(), "order": ("oldest",)})
    with pytest.raises(FatalError, match=r"release type 'release'"):
        known().rocm.of("release")


# --- the plan ------------------------------------------------------------------------------


def of_index(plan: Plan, *groups: str) -> list[RocmOrigin]:
    return [
        RocmOrigin(platform=one.platform, artifact_group=one.artifact_group, index_url=INDEX, version="10.1")
        for some in needs(plan).values()
        for one in some
        if one.artifact_group in groups or not groups
    ]


def test_what_an_index_has_is_neither_built_nor_tested_here() -> None:
    plan = planned("pull_request", pull_request("build:pytorch"))
    made = completed(plan, of_index(plan), ["a note"])
    assert {one.stage for one in made.cells} == {"build_pytorch", "test_pytorch"}
    assert {one.artifact_group for one in made.variants} == {"gfx94X-dcgpu", "gfx110X-all"}
    assert (made.rocm.version, made.notes[-1], made.enable_build_jobs.value) == ("10.1", "a note", True)
    (row,) = {tuple(made.rocm_row(one).items()) for one in made.matrix("linux", "build_pytorch")}
    assert dict(row)["index_url"] == INDEX
    left = [one for one in made.left_out if one.what == "build_rocm, gfx94X-dcgpu on linux"]
    assert left[0].reason == f"ROCm 10.1 comes from {INDEX}"
    plan = planned("pull_request", pull_request("build:pytorch", head="somebody/a-fork"))
    (cell,) = completed(plan, of_index(plan)).matrix("linux", "build_pytorch")
    assert cell.sessions[0] == "build_triton"


def test_a_plan_of_nothing_but_rocm_has_nothing_to_do_with_an_indexs() -> None:
    plan = planned("pull_request", pull_request())
    made = completed(plan, of_index(plan))
    assert (made.cells, made.variants, made.enable_build_jobs.value) == ((), (), False)
    assert "PyTorch is not built: no label build:pytorch" in made.enable_build_jobs.reason
    # the sample brings its own ROCm
    assert needs(dispatched(linux_amdgpu_families="gfx94x", pytorch_git_refs="sample")) == {}


@settings(max_examples=40, deadline=None)
@given(
    labels=st.sets(
        st.sampled_from(["build:pytorch", "ci:asan", "ci:host-asan", "gfx1151", "ci:run-all-archs"])
    ),
    chosen=st.randoms(use_true_random=False),
)
def test_every_plan_is_whole_after_completion(labels: set[str], chosen: Any) -> None:
    plan = planned("pull_request", pull_request(*sorted(labels)))
    every = of_index(plan)
    origins = [one for one in every if chosen.random() < 0.5]
    made = completed(plan, origins)
    indexed = {(one.platform, one.artifact_group) for one in origins}
    held = {(one.platform, one.artifact_group) for one in made.cells}
    assert {(one.platform, one.artifact_group) for one in made.variants} == held
    for cell in made.cells:
        if (cell.platform, cell.artifact_group) in indexed:
            assert not {"fetch_artifacts", "build_rocm", "test_rocm"} & set(cell.sessions)
            assert made.rocm_row(cell)["index_url"] == INDEX
    assert len(made.cells) + len(made.left_out) == len(plan.cells) + len(plan.left_out)
    assert Plan.model_validate_json(made.model_dump_json()) == made
