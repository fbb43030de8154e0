import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.errors import EnvironmentSetupError, UsageError
from pytorch_build.build.build import Build, BuildChoices
from pytorch_build.lock import stored as locking
from pytorch_build.sdk import RocmOptions
from pytorch_build.sources.git import Origins
from pytorch_build.verbs import build as verb
from tests.conftest import Commit

SAMPLE = ("--torch-ref", "sample")
CHOICES = BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={})


@pytest.fixture(autouse=True)
def _no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pytorch_build.lock.stored", "pytorch_build.sources.trees"):
        monkeypatch.setattr(f"{module}.origins", lambda *_: Origins())
    monkeypatch.setattr(locking, "resolve", lambda *_, **__: pytest.fail("the lock serves"))


@pytest.fixture
def planned(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[Build]:
    """Keep what would be built."""
    builds: list[Build] = []
    monkeypatch.setattr(verb, "perform", builds.append)
    monkeypatch.setattr(verb, "require", lambda _python: run.target())
    return builds


def test_a_build_follows_from_lock_rocm_and_triton(front: Any, run: Any, planned: list[Build]) -> None:
    run.put_lock()
    run.rocm()
    run.built("triton")
    answer = front("build", "torch", *SAMPLE)
    assert answer.code == 0, answer.said
    (build,) = planned
    assert build.tree.version == "2.10.0a0+devrocm7.99.0.dev0.sample"
    assert build.rocm is not None
    assert build.rocm.version == "7.99.0.dev0+sample"
    assert [one.project for one in build.dependencies] == ["triton"]


def test_a_policy_is_read_before_hours_are_spent(front: Any, planned: list[Build], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("sises = {}")
    answer = front("build", "torch", *SAMPLE, "--gpu-family", "cpu", "--policy", tmp_path / "mine.toml")
    assert (answer.code, "Did you mean 'sizes'?" in answer.said, planned) == (3, True, [])


def test_family_cpu_needs_no_rocm(
    front: Any, run: Any, planned: list[Build], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.put_lock()
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    assert front("build", "torch", *SAMPLE, "--gpu-family", "cpu").code == 0
    assert planned[0].rocm is None
    # later steps of a job are told the version
    name, version, _ = (tmp_path / "outputs").read_text().splitlines()
    assert name.startswith("torch_version<<")
    assert version == "2.10.0a0+cpu.sample"


@pytest.mark.parametrize(
    ("head", "words", "told"),
    [
        ("me/TheRock", ("--compiler-cache=sccache",), True),
        ("ROCm/TheRock", ("--compiler-cache=sccache",), False),
        ("me/TheRock", (), False),
    ],
)
@pytest.mark.usefixtures("planned")
def test_a_container_is_told_what_a_forks_run_may_not(
    front: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    head: str,
    words: tuple[str, ...],
    *,
    told: bool,
) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"repo": {"full_name": head}}}}))
    monkeypatch.setenv("GITHUB_REPOSITORY", "ROCm/TheRock")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    given = ("build", "torch", *SAMPLE, "--container", "docker", "--dry-run", *words)
    monkeypatch.setattr("sys.argv", ["pytorch_build", *given])
    answer = front(*given)
    assert answer.code == 0, answer.said
    assert ("--compiler-cache-read-only" in answer.said) == told


@pytest.mark.usefixtures("planned")
def test_what_is_missing_names_the_stage_that_makes_it(front: Any, run: Any) -> None:
    run.put_lock()
    rocm = front("build", "torch", *SAMPLE)
    assert rocm.code == 4
    assert "nox -s build_rocm -- --torch-ref sample" in rocm.said
    run.rocm()
    torch = front("build", "audio", *SAMPLE)
    assert torch.code == 4
    assert "nox -s build_torch" in torch.said


@pytest.mark.usefixtures("planned")
def test_a_prebuilt_project_is_not_built(front: Any, run: Any, tmp_path: Path) -> None:
    text = '[refs.mine]\nextends = "sample"\ntorch = { prebuilt = "torch==2.13.0" }\n'
    (tmp_path / "own.toml").write_text(text)
    words = ("--torch-ref", "mine", "--gpu-family", "cpu", "--config-file", str(tmp_path / "own.toml"))
    lock = run.lock(torch_ref="mine")
    torch = lock.project("torch").model_copy(update={"prebuilt": "torch==2.13.0"})
    run.put_lock(lock.model_copy(update={"projects": {**lock.projects, "torch": torch}}))
    answer = front("build", "torch", *words)
    assert (answer.code, "torch==2.13.0" in answer.said) == (6, True), answer.said


@pytest.mark.processes
def test_a_developers_tree_needs_no_lock(
    front: Any, run: Any, planned: list[Build], tmp_path: Path, commit_files: Commit
) -> None:
    tree = tmp_path / "mine"
    commit = commit_files(tree, {"setup.py": "", "version.txt": "2.11.0a0\n", "torch/a.py": ""})
    answer = front("build", "torch", *SAMPLE, "--gpu-family", "cpu", "--pytorch-dir", tree)
    assert answer.code == 0, answer.said
    assert f"torch from {tree}" in answer.said
    (build,) = planned
    assert build.tree.version == "2.11.0a0+cpu.sample"
    assert build.tree.inputs["commit"] == commit
    assert not (run.root / "out").exists()


@pytest.mark.processes
def test_all_problems_of_a_tree_and_its_machine_are_told_before_the_tree_is_copied(
    front: Any, run: Any, tmp_path: Path, commit_files: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "require", lambda _python: run.target())
    monkeypatch.setenv("CC", "absent-cc")
    modules = '[submodule "a"]\n\tpath = third_party/a\n\turl = ../a\n'
    commit_files(tmp_path / "mine", {"setup.py": "", ".gitmodules": modules, "torch/a.py": ""})
    words = ("build", "torch", *SAMPLE, "--gpu-family", "cpu", "--pytorch-dir", tmp_path / "mine")
    answer = front(*words)
    assert answer.code == 13, answer.said
    assert answer.errors == ["error: It cannot be built here, for 3 reasons:"]
    for said in ("mine/version.txt cannot", "mine are not initialised: third_party/a.", "No C compiler"):
        assert said in answer.said
    assert ".own" not in answer.said
    assert not (tmp_path / "src").exists()


@pytest.mark.processes
def test_a_tree_without_a_version_takes_the_locks(
    front: Any, run: Any, planned: list[Build], tmp_path: Path, commit_files: Commit
) -> None:
    commit_files(tmp_path / "mine", {"setup.py": "", "python/triton/a.py": ""})
    run.put_lock()
    words = ("--gpu-family", "cpu", "--triton-dir", tmp_path / "mine")
    assert front("build", "triton", *SAMPLE, *words).code == 0
    assert planned[0].tree.version == "3.6.0+cpu.sample"


@pytest.mark.processes
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("texts", "code", "words"),
    [
        *((None, 6, "does not exist"), ({}, 6, "not a git repository")),
        ({"README": "hello\n"}, 13, "nothing to build"),
    ],
)
def test_a_folder_that_is_no_tree_is_refused(
    front: Any, tmp_path: Path, commit_files: Commit, texts: Mapping[str, str] | None, code: int, words: str
) -> None:
    tree = tmp_path / "mine"
    if texts is not None:
        tree.mkdir()
        (tree / "version.txt").write_text("1.0\n")
    if texts:
        commit_files(tree, texts)
    answer = front("build", "torch", *SAMPLE, "--gpu-family", "cpu", "--pytorch-dir", tree)
    assert answer.code == code, answer.said
    assert words in answer.said
    assert len(answer.errors) == 1


def choices(*words: str, platform: str = "linux") -> BuildChoices:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    verb.add_options(parser)
    return verb.build_choices_from(parser.parse_args(["torch", *words]), platform=platform)


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_options_of_a_build(platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choices() == CHOICES
    names = {"triton": "triton", "torch": "pytorch", "audio": "pytorch-audio", "vision": "pytorch-vision"}
    for project, name in (*names.items(), ("apex", "apex")):
        assert dict(choices(f"--{name}-dir", "mine").own_trees) == {project: tmp_path / "mine"}, "absolute"
    # flash attention is the platform's own
    other = "windows" if platform == "linux" else "linux"
    enable, disable = (f"--{word}enable-pytorch-flash-attention-{platform}" for word in ("", "no-"))
    assert choices(enable, platform=platform).flash_attention is True
    assert choices(disable, platform=platform).flash_attention is False
    assert choices(enable, platform=other).flash_attention is None


def test_a_compiler_cache_and_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda name: Path(f"bin/{name}"))
    cache = choices("--compiler-cache", "ccache").compiler_cache
    assert cache is not None
    assert (cache.kind, cache.program) == ("ccache", Path.cwd() / "bin" / "ccache")
    assert (cache.location, cache.read_only) == ("", False)
    store = "--compiler-cache-store=s3://mine"
    chosen = choices("--compiler-cache=sccache", store, "--compiler-cache-read-only").compiler_cache
    assert chosen is not None
    assert (chosen.location, chosen.read_only) == ("s3://mine", True)
    # before hours are spent
    with pytest.raises(UsageError, match="ccache does not speak S3"):
        choices("--compiler-cache=ccache", store)
    for alone in (store, "--compiler-cache-read-only"):
        with pytest.raises(UsageError, match="say how a compiler cache is used") as without:
            choices(alone)
        assert "--compiler-cache sccache" in without.value.hint
    monkeypatch.setattr(process, "which", lambda _name: None)
    with pytest.raises(EnvironmentSetupError, match="sccache is not on the PATH"):
        choices("--compiler-cache", "sccache")


def test_a_compiler_cache_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda name: Path(f"bin/{name}"))
    monkeypatch.setenv("COMPILER_CACHE", "sccache")
    monkeypatch.setenv("COMPILER_CACHE_STORE", "s3://mine")
    for words, location in (((), "s3://mine"), (("--compiler-cache-store=local",), "local")):
        cache = choices(*words).compiler_cache
        assert cache is not None
        assert (cache.kind, cache.location) == ("sccache", location)
    # as a workflow passes variables that nobody has set
    for name in ("COMPILER_CACHE", "COMPILER_CACHE_STORE"):
        monkeypatch.setenv(name, "")
    assert choices().compiler_cache is None
    monkeypatch.setenv("COMPILER_CACHE", "scache")
    with pytest.raises(UsageError, match="COMPILER_CACHE='scache' is not a compiler cache") as wrong:
        choices()
    assert "sccache" in wrong.value.hint


def test_mirrors_are_prefix_and_place() -> None:
    chosen = choices("--git-mirror", "https://github.com/=/m/", "--git-mirror", "https://gitlab.com/=/g/?a=b")
    assert dict(chosen.mirrors) == {"https://github.com/": "/m/", "https://gitlab.com/": "/g/?a=b"}
    for wrong in ("nothing", "=there", "here="):
        with pytest.raises(UsageError, match="PREFIX=MIRROR"):
            choices("--git-mirror", wrong)
