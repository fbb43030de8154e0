"""The run that broke a command, among forty of a store: real wheels of real commits, installed by uv."""

import json
import shlex
import signal
import subprocess  # noqa: TID251 - to be interrupted
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.archive import Member
from core.cli.options import ROOT
from core.errors import CheckError, InterruptedStageError, ProcessError, UsageError
from core.run import RunOutputs, records
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.location import open_store
from core.wheel import distributions
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from tests.kit.clones import Clone, printed_by
from tests.kit.s3_servers import S3Server

RUNS, BROKEN = 40, 27
PYTHON = f"cp3{sys.version_info.minor}"
BEGUN = datetime(2026, 11, 1, 3, tzinfo=UTC)
# `failed` was not built, `lost` has no wheel any more, and `never` was not even begun
FAILED, LOST, NEVER = {5, 20, 25}, {26, 30}, {12}
COMMAND = ("sh", "-c", 'echo $BISECT_RUN >> "$0"; python -c "import torch; raise SystemExit(torch.broken)"')


def name(at: int) -> str:
    """Name a run so that names say nothing of times."""
    return f"n{(at * 7 + 3) % RUNS:02}"


def wheel(folder: Path, named: str, version: str, texts: dict[str, str], tag: str = "py3-none-any") -> Path:
    """Write a wheel."""
    metadata = metadata_text([("Name", named), ("Version", version)])
    spec = WheelSpec(distribution=named, version=version, tag=tag, metadata=metadata)
    return write_wheel(folder, spec, [Member(name=one, source=texts[one].encode()) for one in texts]).path


def leave(store: Store, run_id: str, at: int, cell: records.Cell, path: Path, **facts: Any) -> str:
    """Leave the record of a build in a run, and its wheel; return the wheel's key."""
    outputs = RunOutputs(run_id=run_id, platform="linux")
    one = distributions.publish(store, outputs, cell.gpu_family, path)
    when = (BEGUN + timedelta(days=at)).isoformat()
    known = {"run_id": run_id, "platform": "linux", "started": when, "seconds": 1, "files": (one,)}
    records.write(store, outputs, cell.gpu_family, records.Record(cell=cell, **{**known, **facts}))
    return one.key


@dataclass(frozen=True)
class History:
    """Forty commits of a repository, the wheel of each, and the lock that names it."""

    folder: Path
    made: tuple[tuple[SourceLock, Path], ...]

    def publish(self, store: Store, *, first: int = 0) -> None:
        """Leave each as a run, or those from the `first` on."""
        for at, (lock, path) in enumerate(self.made[first:], first):
            key = RunOutputs(run_id=name(at), platform="linux").source_lock_key("mine")
            store.put_bytes(key, lock.model_dump_json().encode())
            failed: dict[str, Any] = {"status": "failed", "files": ()} if at in FAILED else {}
            cell = records.Cell(python=PYTHON, torch_ref="mine", gpu_family="cpu")
            if at in NEVER:
                continue
            left = leave(store, name(at), at, cell, path, stage="build_torch", **failed)
            if at in LOST:
                store.delete(left)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder, made = tmp_path_factory.mktemp("history"), []
    git = ("git", "-C", folder)
    process.capture([*git, "init", "--quiet"])
    texts = [f"broken = {int(at >= BROKEN)}\nat = {at}\n" for at in range(RUNS)]
    stream = ""
    for at, text in enumerate(texts):
        said = "break it" if at == BROKEN else f"change {at}"
        who = f"committer one <one@example.invalid> {at} +0000"
        stream += f"commit refs/heads/main\n{who}\ndata {len(said)}\n{said}"
        stream += f"\nM 100644 inline torch.py\ndata {len(text)}\n{text}\n"
    process.capture([*git, "fast-import", "--quiet"], stdin=stream)
    commits = process.capture([*git, "rev-list", "--reverse", "main"]).stdout.split()
    for commit, text in zip(commits, texts, strict=True):
        version, tag = f"2.10.0a0+cpu.git{commit[:8]}", f"{PYTHON}-{PYTHON}-linux_x86_64"
        facts = {"project": "torch", "origin": str(folder), "commit": commit, "base_version": "2.10.0a0"}
        locked = LockedProject.model_validate({**facts, "versions": {"cpu": version}})
        lock = SourceLock(torch_ref="mine", release_type="dev", projects={"torch": locked})
        made.append((lock, wheel(folder / "dist", "torch", version, {"torch.py": text}, tag)))
    return History(folder, tuple(made))


def words(state: Path, good: str, bad: str, *options: str, command: Sequence[str]) -> list[str]:
    argv = [sys.executable, *f"-m ci bisect --json --good {good} --bad {bad} --state".split(), str(state)]
    return [*argv, *options, "--", *command]


def call(*ends: Any, command: Sequence[str]) -> process.Completed:
    return process.capture(words(*ends, command=command), cwd=ROOT, env=process.inherited(), check=False)


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_planted_commit_is_found(kind: str, history: History, rclone: S3Server, tmp_path: Path) -> None:
    place = str(tmp_path / "runs") if kind == "folder" else f"s3://{rclone.make_bucket()}"
    history.publish(open_store(place, root=ROOT))
    ends, tried = (tmp_path / "state", name(0), name(RUNS - 1)), tmp_path / "tried"
    done = call(*ends, "--store", place, command=[*COMMAND, str(tried)])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["first_bad"], found["last_good"]) == (name(BROKEN), name(24))
    assert set(found["skipped"]) == {name(25), name(26)}
    assert "no longer there" in found["skipped"][name(26)]
    assert len(tried.read_text().split()) <= 2 + 6
    (torch,) = (one for one in found["changes"] if one["what"] == "torch")
    log = torch["more"][0].replace("--oneline", "--format=%s").split()
    assert process.capture(log).stdout.split("\n")[0] == "break it"
    assert f"It may also be {name(25)} or {name(26)}, which could not be tested (--build" in done.stderr
    assert f"{name(BROKEN)} is bad: the command ended with status 1." in done.stderr
    again = call(*ends, "--store", place, command=[*COMMAND, str(tried)])
    assert again.stdout == done.stdout, "what is known is told again, and nothing tested"
    assert len(tried.read_text().split()) <= 2 + 6


def test_an_interrupted_search_goes_on_and_another_one_is_refused(history: History, tmp_path: Path) -> None:
    history.publish(DirectoryStore(tmp_path / "runs"), first=24)
    ends = (tmp_path / "state", name(24), name(29), "--store", str(tmp_path / "runs"))
    wait = '[ -e "$0.go" ] || { touch "$0.at"; sleep 60; }'
    wait = f"case $BISECT_RUN in {name(24)}|{name(29)}) ;; *) {wait};; esac"
    tried = tmp_path / "tried"
    command = ["sh", "-c", f"{wait}; {COMMAND[2]}", str(tried)]
    planned = call(*ends, "--dry-run", command=command)
    assert f"{name(25)}  2026-11-26T03:00  build_torch-mine-{PYTHON}: " in planned.stderr
    assert (
        f"6 in all, 1 without wheels (--build builds them): 4 tests at most, the next at {name(24)}."
        in planned.stderr
    )
    with subprocess.Popen(words(*ends, command=command), cwd=ROOT, stderr=subprocess.PIPE) as begun:
        while not (tmp_path / "tried.at").exists():
            assert begun.poll() is None
            time.sleep(0.05)
        begun.send_signal(signal.SIGINT)
        begun.communicate(timeout=60)
    assert begun.returncode == InterruptedStageError.exit_code
    assert len(tried.read_text().split()) == 2
    other = call(*ends, command=["true"])
    assert other.returncode == UsageError.exit_code
    assert f"\nnox -s bisect -- {shlex.join(words(*ends, command=command)[4:])}\n" in other.stderr
    (tmp_path / "tried.go").touch()
    done = call(*ends, command=command)
    assert json.loads(done.stdout)["first_bad"] == name(BROKEN)
    assert tried.read_text().split() == [name(24), name(29), name(27)], "each was tested once"
    swapped = call(*ends, command=["sh", "-c", "exit 3"])
    assert swapped.returncode == CheckError.exit_code, "a search at its end is no longer in the way"
    assert f"{name(24)} should be good, and is not: the command ended with status 3." in swapped.stderr
    stopped = call(*ends, "--reset", "--no-verify", command=["sh", "-c", "kill -SEGV $$"])
    assert stopped.returncode == ProcessError.exit_code
    assert "The command ended with signal SIGSEGV at" in stopped.stderr


def test_what_a_run_lacks_is_built_at_the_commits_of_its_lock(tmp_path: Path) -> None:
    clone, store = Clone.create(tmp_path / "checkout"), DirectoryStore(tmp_path / "runs")
    options = ("--store", store.url, "--config-file", tmp_path / "mine.toml")

    def refs(torch: str) -> None:
        text = f'[refs.mine]\nextends = "sample"\ncomponents = ["torch"]\ntorch = {{ {torch} }}'
        (tmp_path / "mine.toml").write_text(text)

    refs('ref = "nightly"')
    for at in range(3):
        run = ("--torch-ref", "mine", "--gpu-family", "cpu", "--run-id", f"{at}")
        clone.run_checked("pytorch_build", "resolve", *options, *run)
        made = wheel(tmp_path / "dist", "torch", f"2.9.{at}", {"torch.py": ""})
        cell = records.Cell(python=PYTHON, torch_ref="mine", gpu_family="cpu")
        left = leave(store, f"{at}", at, cell, made, stage="build_torch")
        if at == 1:
            store.delete(left)
    ends = ("--good", "0", "--bad", "2", "--reset", "--build")
    words = ("ci", "bisect", *options, *ends, "--", "sh", "-c", "[ $BISECT_RUN != 2 ]")
    refs('origin = "/elsewhere", ref = "nightly"')
    assert "1: Its lock has another origin of torch than the refs data." in printed_by(clone.run(*words))
    refs('ref = "main"')
    assert "The first bad one is 2, of 2026-11-03 03:00; the last good one is 1." in clone.run_checked(*words)
    locks = (tmp_path / "runs/1-linux", clone.path / "out/local-bisect-1-linux")
    then, now = (json.loads((one / "manifests/source-lock-mine.json").read_text()) for one in locks)
    assert now["projects"]["torch"]["commit"] == then["projects"]["torch"]["commit"]


def test_versions_of_an_index_are_searched_by_their_days(tmp_path: Path) -> None:
    for day, base in product(range(10, 30), ("2.11.0a0", "2.9.1")):
        said = f"git_version = '{day * 10**38:040}'\nbroken = {int(day >= 17)}\n"
        texts = {"torch/__init__.py": "", "torch/version.py": said}
        wheel(tmp_path / "dist", "torch", f"{base}+rocm7.{day // 20}.0a202611{day}", texts)
    ends = (tmp_path / "state", "2026-11-11", "2026-11-29")
    code = "from torch.version import broken; raise SystemExit(broken)"
    options = ("--find-links", str(tmp_path / "dist"), "--gpu-family", "gfx942", "--repeat", "2")
    done = call(*ends, *options, command=["python", "-c", code])
    found = json.loads(done.stdout)
    assert "Searched is 2.11.0a0; for others name versions" in done.stderr
    assert found["last_good"] == "2.11.0a0+rocm7.0.0a20261116"
    assert found["first_bad"] == "2.11.0a0+rocm7.0.0a20261117"
    assert found["changes"][0]["more"][0] == "git log --oneline 160000000000..170000000000"
    assert found["changes"][1]["what"] == "installed torch"


def test_rocm_alone_is_searched_and_told_by_the_commits_of_its_build(tmp_path: Path) -> None:
    store, url = DirectoryStore(tmp_path / "runs"), "https://github.com/ROCm/rocm-libraries.git"
    for at in range(6):
        module = {"submodule_name": "libraries", "submodule_url": url, "pin_sha": f"{at // 2}" * 40}
        said = json.dumps({"the_rock_commit": "c" * 40, "submodules": [module]})
        texts = {"_rocm_sdk_core/share/therock/therock_manifest.json": said, "at.py": f"at = {at}"}
        made = wheel(tmp_path / "dist", "rocm-sdk-core", f"7.10.0a2026110{at + 1}", texts)
        leave(store, f"{100 + at}", at, records.Cell(gpu_family="gfx942"), made, stage="build_rocm")
    options = ("--rocm", "--packages", "rocm-sdk-core", "--store", str(tmp_path / "runs"))
    code = ["python", "-c", "import at; raise SystemExit(at.at > 3)"]
    done = call(tmp_path / "state", "7.10.0a20261101", "2026-11-06", *options, command=code)
    found = json.loads(done.stdout)
    assert (found["last_good"], found["first_bad"]) == ("103", "104")
    page = "https://github.com/ROCm/rocm-libraries/compare/111111111111...222222222222"
    assert found["changes"][0]["more"] == ["git log --oneline 111111111111..222222222222", page]
