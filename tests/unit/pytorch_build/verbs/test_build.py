import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core import process
from core.errors import EnvironmentSetupError, SourceError, UsageError
from core.run import Platform
from core.status import Pending
from pytorch_build.build.build import Work
from pytorch_build.build.request import BuildRequest
from pytorch_build.components import TORCH
from pytorch_build.lock import stored as locking
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources.git import Origins
from pytorch_build.verbs import build as verb
from tests.kit.builds import LocalRun, write_requirements
from tests.kit.front_doors import FrontDoorResult, look_at_verb
from tests.kit.repos import commit_files

Front = Callable[..., FrontDoorResult]

SAMPLE = ("--torch-ref", "sample")
CPU = (*SAMPLE, "--gpu-family", "cpu")


@pytest.fixture(autouse=True)
def _without_sample_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pytorch_build.lock.stored", "pytorch_build.sources.trees"):
        monkeypatch.setattr(f"{module}.prepare_origins", lambda *_: Origins())
    monkeypatch.setattr(locking, "resolve", lambda *_, **__: pytest.fail("the stored lock was not used"))


@pytest.fixture
def builds(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """Return what would be built."""
    planned_builds: list[Work] = []
    write_requirements(run.root)
    monkeypatch.setattr(verb, "build_wheel", planned_builds.append)
    monkeypatch.setattr(verb, "require", lambda _python: run.target())
    return planned_builds


def test_builds_with_the_runs_lock_rocm_and_triton(front: Front, run: LocalRun, builds: list[Work]) -> None:
    run.put_lock()
    run.rocm()
    run.built("triton")

    result = front("build", "torch", *SAMPLE)

    (build,) = builds
    assert result.exit_code == 0, result.report
    assert build.inputs.version == "2.10.0a0+devrocm7.99.0.dev0.sample"
    assert build.rocm is not None
    assert build.rocm.version == "7.99.0.dev0+sample"
    assert [dependency.project for dependency in build.inputs.dependencies] == ["triton"]


def test_reads_a_policy_before_it_builds(front: Front, builds: list[Work], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("sises = {}")

    result = front("build", "torch", *CPU, "--policy", tmp_path / "mine.toml")

    assert result.exit_code == 3
    assert "'sizes'" in result.report
    assert builds == []


def test_builds_without_rocm_for_processors(front: Front, run: LocalRun, builds: list[Work]) -> None:
    run.put_lock()

    result = front("build", "torch", *CPU)

    assert result.exit_code == 0, result.report
    assert builds[0].rocm is None


@pytest.mark.usefixtures("builds")
def test_tells_later_steps_of_a_job_the_version(
    front: Front, run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.put_lock()
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))

    front("build", "torch", *CPU)

    name, version, _end = (tmp_path / "outputs").read_text().splitlines()
    assert name.startswith("torch_version<<")
    assert version == "2.10.0a0+cpu.sample"


@pytest.mark.usefixtures("front", "builds")
def test_a_look_says_why_the_wheel_is_built(run: LocalRun) -> None:
    assert look_at_verb("pytorch_build", "build", "torch", *SAMPLE) == Pending(
        reasons=("its source lock is not resolved",)
    )

    run.put_lock()
    run.rocm()
    run.built("triton")

    assert look_at_verb("pytorch_build", "build", "torch", *SAMPLE) == Pending(
        reasons=("it was not done yet",)
    )


@pytest.mark.parametrize(
    ("head", "options", "is_read_only"),
    [
        pytest.param("me/TheRock", ("--compiler-cache=sccache",), True, id="fork"),
        pytest.param("ROCm/TheRock", ("--compiler-cache=sccache",), False, id="own branch"),
        pytest.param("me/TheRock", (), False, id="fork without a cache"),
    ],
)
@pytest.mark.usefixtures("builds")
def test_only_reads_the_compiler_cache_for_a_fork(
    front: Front,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    head: str,
    options: tuple[str, ...],
    *,
    is_read_only: bool,
) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"repo": {"full_name": head}}}}))
    monkeypatch.setenv("GITHUB_REPOSITORY", "ROCm/TheRock")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    words = ("build", "torch", *SAMPLE, "--container", "docker", "--dry-run", *options)
    monkeypatch.setattr("sys.argv", ["pytorch_build", *words])

    result = front(*words)

    assert result.exit_code == 0, result.report
    assert ("--compiler-cache-read-only" in result.report) == is_read_only


@pytest.mark.usefixtures("builds")
def test_names_the_session_that_builds_missing_rocm(front: Front, run: LocalRun) -> None:
    run.put_lock()

    result = front("build", "torch", *SAMPLE)

    assert result.exit_code == 4
    assert "nox -s build_rocm -- --torch-ref sample" in result.report


@pytest.mark.usefixtures("builds")
def test_names_the_session_that_builds_a_missing_torch(front: Front, run: LocalRun) -> None:
    run.put_lock()
    run.rocm()

    result = front("build", "audio", *SAMPLE)

    assert result.exit_code == 4
    assert "nox -s build_torch" in result.report


@pytest.mark.usefixtures("builds")
def test_refuses_to_build_a_prebuilt_project(front: Front, run: LocalRun, tmp_path: Path) -> None:
    refs = '[refs.mine]\nextends = "sample"\ntorch = { prebuilt = "torch==2.13.0" }\n'
    (tmp_path / "own.toml").write_text(refs)
    lock = run.lock(torch_ref="mine")
    torch = lock.project("torch").model_copy(update={"prebuilt": "torch==2.13.0"})
    run.put_lock(lock.model_copy(update={"projects": {**lock.projects, "torch": torch}}))

    options = ("--torch-ref", "mine", "--gpu-family", "cpu", "--config-file", tmp_path / "own.toml")
    result = front("build", "torch", *options)

    assert result.exit_code == 6, result.report
    assert "torch==2.13.0" in result.report


@pytest.mark.processes
def test_builds_a_developers_tree_without_a_lock(
    front: Front, run: LocalRun, builds: list[Work], tmp_path: Path
) -> None:
    tree = tmp_path / "mine"
    commit = commit_files(tree, {"setup.py": "", "version.txt": "2.11.0a0\n", "torch/a.py": ""})

    result = front("build", "torch", *CPU, "--pytorch-dir", tree)

    (build,) = builds
    assert result.exit_code == 0, result.report
    assert f"torch from {tree}" in result.report
    assert build.inputs.version == "2.11.0a0+cpu.sample"
    assert build.inputs.source["commit"] == commit
    assert not (run.root / "out").exists()


@pytest.mark.processes
def test_names_all_problems_of_a_tree_and_its_machine_at_once(
    front: Front, run: LocalRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "require", lambda _python: run.target())
    monkeypatch.setenv("CC", "absent-cc")
    submodules = '[submodule "a"]\n\tpath = third_party/a\n\turl = ../a\n'
    commit_files(tmp_path / "mine", {"setup.py": "", ".gitmodules": submodules, "torch/a.py": ""})

    result = front("build", "torch", *CPU, "--pytorch-dir", tmp_path / "mine")

    assert result.exit_code == 13, result.report
    assert len(result.errors) == 1
    for name in ("mine/version.txt", "third_party/a", "C compiler"):
        assert name in result.report
    # The tree is copied below src/.own once all is well.
    assert ".own" not in result.report
    assert not (tmp_path / "src").exists()


@pytest.mark.processes
def test_a_tree_without_a_version_gets_the_locks(
    front: Front, run: LocalRun, builds: list[Work], tmp_path: Path
) -> None:
    commit_files(tmp_path / "mine", {"setup.py": "", "python/triton/a.py": ""})
    run.put_lock()

    result = front("build", "triton", *CPU, "--triton-dir", tmp_path / "mine")

    assert result.exit_code == 0, result.report
    assert builds[0].inputs.version == "3.6.0+cpu.sample"


@pytest.mark.processes
@pytest.mark.usefixtures("builds")
def test_names_a_tree_that_is_not_there_before_a_gpu_that_is_not(front: Front, tmp_path: Path) -> None:
    result = front("build", "torch", "--torch-ref=nightly", "--pytorch-dir", tmp_path / "mine")

    assert result.exit_code == SourceError.exit_code, result.report
    assert str(tmp_path / "mine") in result.report


@pytest.mark.processes
@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize(
    ("texts", "exit_code", "name"),
    [
        pytest.param(None, 6, "does not exist", id="no folder"),
        pytest.param({}, 6, "git", id="no repository"),
        pytest.param({"README": "hello\n"}, 13, "nothing to build", id="no project"),
    ],
)
def test_refuses_a_folder_that_is_no_tree(
    front: Front, tmp_path: Path, texts: Mapping[str, str] | None, exit_code: int, name: str
) -> None:
    tree = tmp_path / "mine"
    if texts is not None:
        tree.mkdir()
        (tree / "version.txt").write_text("1.0\n")
    if texts:
        commit_files(tree, texts)

    result = front("build", "torch", *CPU, "--pytorch-dir", tree)

    assert result.exit_code == exit_code, result.report
    assert name in result.report
    assert len(result.errors) == 1


def request_with(*words: str, platform: Platform = "linux") -> BuildRequest:
    """Return the build that options ask for."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    verb.add_options(parser)
    run = LocalRun(root=Path("checkout"))
    arguments = parser.parse_args(["torch", *words])
    return verb.request_from(arguments, run.context(platform=platform), run.target())


def test_a_build_without_options_chooses_nothing() -> None:
    request = request_with()

    assert request == BuildRequest(
        context=request.context,
        target=request.target,
        component=TORCH,
        user_env=request.user_env,
        rocm=RocmOptions(),
        own_trees={},
        mirrors={},
    )


@pytest.mark.parametrize(
    ("option", "project"),
    [
        ("--triton-dir", "triton"),
        ("--pytorch-dir", "torch"),
        ("--pytorch-audio-dir", "audio"),
        ("--pytorch-vision-dir", "vision"),
        ("--apex-dir", "apex"),
    ],
)
def test_a_developers_tree_is_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, project: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert dict(request_with(option, "mine").own_trees) == {project: tmp_path / "mine"}


@pytest.mark.parametrize(
    ("option", "platform", "choice"),
    [
        ("--enable-pytorch-flash-attention-linux", "linux", True),
        ("--no-enable-pytorch-flash-attention-linux", "linux", False),
        ("--enable-pytorch-flash-attention-windows", "linux", None),
        ("--enable-pytorch-flash-attention-windows", "windows", True),
        ("--no-enable-pytorch-flash-attention-windows", "windows", False),
        ("--enable-pytorch-flash-attention-linux", "windows", None),
    ],
)
def test_flash_attention_is_chosen_for_each_platform(
    option: str, platform: Platform, *, choice: bool | None
) -> None:
    assert request_with(option, platform=platform).flash_attention is choice


@pytest.fixture
def cache_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put compiler caches on the PATH."""
    monkeypatch.setattr(process, "which", lambda name: Path(f"bin/{name}"))


STORE = "--compiler-cache-store=s3://mine"


@pytest.mark.usefixtures("cache_programs")
def test_a_compiler_cache_is_local_and_written_to() -> None:
    cache = request_with("--compiler-cache", "ccache").compiler_cache

    assert cache is not None
    assert cache.kind == "ccache"
    assert cache.program == Path.cwd() / "bin" / "ccache"
    assert cache.store is None
    assert not cache.read_only


@pytest.mark.usefixtures("cache_programs")
def test_a_compiler_cache_may_be_a_store_that_is_only_read() -> None:
    cache = request_with("--compiler-cache=sccache", STORE, "--compiler-cache-read-only").compiler_cache

    assert cache is not None
    assert cache.store == "s3://mine"
    assert cache.read_only


@pytest.mark.usefixtures("cache_programs")
def test_refuses_a_store_that_the_compiler_cache_cannot_use() -> None:
    with pytest.raises(UsageError, match="S3"):
        request_with("--compiler-cache=ccache", STORE)


@pytest.mark.parametrize("option", [STORE, "--compiler-cache-read-only"])
def test_options_of_a_compiler_cache_need_one(option: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_with(option)

    assert "--compiler-cache sccache" in caught.value.hint


def test_refuses_a_compiler_cache_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda _name: None)

    with pytest.raises(EnvironmentSetupError, match="sccache"):
        request_with("--compiler-cache", "sccache")


@pytest.mark.usefixtures("cache_programs")
@pytest.mark.parametrize(
    ("options", "store"),
    [
        pytest.param((), "s3://mine", id="alone"),
        pytest.param(("--compiler-cache-store=s3://other",), "s3://other", id="with an option"),
    ],
)
def test_variables_choose_a_compiler_cache(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], store: str
) -> None:
    monkeypatch.setenv("COMPILER_CACHE", "sccache")
    monkeypatch.setenv("COMPILER_CACHE_STORE", "s3://mine")

    cache = request_with(*options).compiler_cache

    assert cache is not None
    assert cache.kind == "sccache"
    assert cache.store == store


def test_empty_variables_choose_no_compiler_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow sets variables that nobody has filled."""
    for name in ("COMPILER_CACHE", "COMPILER_CACHE_STORE"):
        monkeypatch.setenv(name, "")

    assert request_with().compiler_cache is None


@pytest.mark.usefixtures("cache_programs")
def test_refuses_a_variable_that_names_no_compiler_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILER_CACHE", "scache")

    with pytest.raises(UsageError, match="COMPILER_CACHE='scache'") as caught:
        request_with()

    assert "sccache" in caught.value.hint


def test_mirrors_take_the_place_of_prefixes() -> None:
    mirrors = request_with(
        "--git-mirror", "https://a.invalid/=/m/", "--git-mirror", "https://b.invalid/=/g/?a=b"
    )

    assert dict(mirrors.mirrors) == {"https://a.invalid/": "/m/", "https://b.invalid/": "/g/?a=b"}


@pytest.mark.parametrize("mirror", ["nothing", "=there", "here="])
def test_refuses_a_mirror_without_prefix_or_place(mirror: str) -> None:
    with pytest.raises(UsageError, match="PREFIX=MIRROR"):
        request_with("--git-mirror", mirror)
