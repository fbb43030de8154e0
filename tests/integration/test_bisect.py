"""The run that broke a command, among those of a store: real wheels of real commits, installed by uv."""

import json
import shlex
import signal
import subprocess  # noqa: TID251 - to be interrupted
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.cli.options import ROOT
from core.errors import CheckError, InterruptedStageError, ProcessError, UsageError
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.stores.location import open_store
from core.wheel import distributions
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from tests.kit import repos, runs, sample
from tests.kit.clones import Clone, printed_by
from tests.kit.documented_commands import run_page
from tests.kit.s3_servers import S3Server
from tests.kit.sample import SampleRun
from tests.kit.wheels import write_wheel

pytestmark = pytest.mark.nightly

TORCH_REF = "mine"
PYTHON = f"cp3{sys.version_info.minor}"
STEP = f"build_torch-{TORCH_REF}-{PYTHON}"
# The first of the runs, which follow one another day by day.
BEGINNING = datetime(2025, 11, 1, 3, tzinfo=UTC)

# Numbers of runs: which break the command, and which cannot be tested.
RUN_COUNT = 16
BROKEN = 11
NOT_BUILT = {2, 9}
WITHOUT_WHEEL = {10, 14}
NOT_BEGUN = {5}
LAST_GOOD = 8

# $0 is a file that lists the runs that were tested.
COMMAND = ("sh", "-c", 'echo $BISECT_RUN >> "$0"; python -c "import torch; raise SystemExit(torch.broken)"')


def run_name(number: int) -> str:
    """Name a run so that names say nothing of times."""
    return f"n{(number * 7 + 3) % RUN_COUNT:02}"


def time_of(number: int) -> str:
    """Return when a run began."""
    return (BEGINNING + timedelta(days=number)).isoformat()


def publish_build(
    store: Store,
    wheel: Path,
    *,
    run_id: str,
    started: str,
    step: str = STEP,
    family: str = "cpu",
    torch_ref: str = TORCH_REF,
    python: str = PYTHON,
) -> str:
    """Leave a wheel in a run, and the record of its build; return the wheel's key."""
    run = runs.run_outputs(run_id)
    file = distributions.publish(store, run, family, wheel)
    runs.write_record(
        store,
        run,
        step=step.partition("-")[0],
        family=family,
        torch_ref=torch_ref,
        python=python,
        files=(file,),
        started=started,
    )
    return file.key


@dataclass(frozen=True)
class Build:
    """What one commit gives: a wheel, and the lock that names it."""

    lock: SourceLock
    wheel: Path


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Build]:
    """Return the builds of a repository's commits, from the oldest on."""
    folder = tmp_path_factory.mktemp("history")
    numbers = range(RUN_COUNT)
    texts = [f"broken = {int(number >= BROKEN)}\nnumber = {number}\n" for number in numbers]
    messages = ["break it" if number == BROKEN else f"change {number}" for number in numbers]
    commits = repos.import_history(folder / "torch", path="torch.py", texts=texts, messages=messages)

    builds = []
    for number, commit in enumerate(commits):
        version = f"2.10.0a0+cpu.git{commit[:8]}"
        torch = LockedProject(
            project="torch",
            origin=str(folder / "torch"),
            commit=commit,
            base_version="2.10.0a0",
            versions={"cpu": version},
        )
        lock = SourceLock(
            resolved=time_of(number), torch_ref=TORCH_REF, release_type="dev", projects={"torch": torch}
        )
        tag = f"{PYTHON}-{PYTHON}-linux_x86_64"
        wheel = write_wheel(folder / "dist", version=version, tag=tag, files={"torch.py": texts[number]})
        builds.append(Build(lock=lock, wheel=wheel))
    return builds


def publish_history(store: Store, history: Sequence[Build], *, first: int = 0) -> None:
    """Leave each build as a run, or those from the number `first` on."""
    for number in range(first, RUN_COUNT):
        build = history[number]
        run = runs.run_outputs(run_name(number))
        store.put_bytes(run.source_lock_key(TORCH_REF), build.lock.model_dump_json().encode())
        if number in NOT_BEGUN:
            continue
        if number in NOT_BUILT:
            runs.write_record(
                store,
                run,
                step="build_torch",
                family="cpu",
                torch_ref=TORCH_REF,
                python=PYTHON,
                started=time_of(number),
                error="failed",
            )
            continue
        key = publish_build(store, build.wheel, run_id=run_name(number), started=time_of(number))
        if number in WITHOUT_WHEEL:
            store.delete(key)


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search between two runs, versions or days."""

    state: Path
    good: str
    bad: str
    options: Sequence[str | Path]

    def command_line(self, *more_options: str, command: Sequence[str]) -> list[str]:
        """Return the command line that begins or continues the search."""
        front_door = [sys.executable, "-m", "ci", "bisect", "--json", "--state", str(self.state)]
        ends = ["--good", self.good, "--bad", self.bad]
        return [*front_door, *ends, *map(str, self.options), *more_options, "--", *command]

    def run(self, *more_options: str, command: Sequence[str]) -> process.Completed:
        """Begin or continue the search."""
        command_line = self.command_line(*more_options, command=command)
        return process.capture(command_line, cwd=ROOT, env=process.inherited(), check=False)


def search_runs(tmp_path: Path, store: str | Path, good: int, bad: int) -> Search:
    """Return a search between two runs of a store."""
    state = tmp_path / "state"
    return Search(state=state, good=run_name(good), bad=run_name(bad), options=("--store", store))


def test_finds_a_planted_commit_in_a_bucket(
    history: Sequence[Build], rclone: S3Server, tmp_path: Path
) -> None:
    bucket = f"s3://{rclone.make_bucket()}"
    publish_history(open_store(bucket, root=ROOT), history)
    search = search_runs(tmp_path, bucket, 0, RUN_COUNT - 1)
    tested = tmp_path / "tested"

    completed = search.run(command=[*COMMAND, str(tested)])

    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result["first_bad"] == run_name(BROKEN)
    assert result["last_good"] == run_name(LAST_GOOD)
    assert set(result["skipped"]) == {run_name(9), run_name(10)}
    assert f"{run_name(9)} or {run_name(10)}" in completed.stderr
    # Both ends, and half of what is left each time.
    assert len(tested.read_text().split()) <= 2 + 4
    (torch,) = (change for change in result["changes"] if change["what"] == "torch")
    log_command = torch["more"][0].replace("--oneline", "--format=%s").split()
    assert process.capture(log_command).stdout.split("\n")[0] == "break it"

    # What is known is told again, and nothing is tested.
    number_tested = len(tested.read_text().split())
    assert search.run(command=[*COMMAND, str(tested)]).stdout == completed.stdout
    assert len(tested.read_text().split()) == number_tested


def test_every_command_of_the_page_for_the_sample_runs_as_it_stands(sample_run: SampleRun) -> None:
    page = (ROOT / "docs" / "bisect.md").read_text(encoding="utf-8")
    section = page.partition("## On the sample")[2].partition("\n## ")[0]

    with sample.lend_workshop(sample_run) as path:
        printed = run_page(Clone(path=path), section)

    assert "The first bad one is local-broken" in printed


def test_names_two_runs_that_have_nothing_in_common(history: Sequence[Build], tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    for number, torch_ref in enumerate((TORCH_REF, "other")):
        publish_build(
            store,
            history[number].wheel,
            run_id=run_name(number),
            started=time_of(number),
            step=f"build_torch-{torch_ref}-{PYTHON}",
            torch_ref=torch_ref,
        )

    refused = search_runs(tmp_path, store.url, 0, 1).run(command=["true"])

    assert refused.returncode == UsageError.exit_code
    assert f"{run_name(0)} and {run_name(1)}" in refused.stderr
    assert "torch ref" in refused.stderr


def test_lists_a_run_without_a_record_by_the_time_of_its_lock(
    history: Sequence[Build], tmp_path: Path
) -> None:
    publish_history(DirectoryStore(tmp_path / "runs"), history, first=4)

    dry_run = search_runs(tmp_path, tmp_path / "runs", 4, 7).run("--dry-run", command=["true"])

    assert dry_run.returncode == 0, dry_run.stderr
    assert f"{run_name(5)}  2025-11-06T03:00  " in dry_run.stderr


def test_plans_how_many_tests_a_search_takes(history: Sequence[Build], tmp_path: Path) -> None:
    publish_history(DirectoryStore(tmp_path / "runs"), history, first=8)

    dry_run = search_runs(tmp_path, tmp_path / "runs", 8, 13).run("--dry-run", command=["true"])

    assert f"{run_name(9)}  2025-11-10T03:00  {STEP}: " in dry_run.stderr
    assert "6 in all, 1 without wheels" in dry_run.stderr
    assert f"4 tests at most, the next at {run_name(8)}" in dry_run.stderr


def test_continues_an_interrupted_search_and_refuses_another(
    history: Sequence[Build], tmp_path: Path
) -> None:
    publish_history(DirectoryStore(tmp_path / "runs"), history, first=8)
    search = search_runs(tmp_path, tmp_path / "runs", 8, 13)
    tested = tmp_path / "tested"
    # Between the ends it waits until the file tested.go is there, so that it can be interrupted.
    wait = '[ -e "$0.go" ] || { touch "$0.at"; sleep 60; }'
    wait_between = f"case $BISECT_RUN in {run_name(8)}|{run_name(13)}) ;; *) {wait};; esac"
    command = ["sh", "-c", f"{wait_between}; {COMMAND[2]}", str(tested)]

    interrupt_when(search.command_line(command=command), tmp_path / "tested.at")
    assert len(tested.read_text().split()) == 2

    refused = search.run(command=["true"])
    assert refused.returncode == UsageError.exit_code
    continuing = shlex.join(search.command_line(command=command)[4:])
    assert f"\npython -m ci bisect {continuing}\n" in refused.stderr

    (tmp_path / "tested.go").touch()
    completed = search.run(command=command)
    assert json.loads(completed.stdout)["first_bad"] == run_name(BROKEN)
    # Each was tested once.
    assert tested.read_text().split() == [run_name(8), run_name(13), run_name(BROKEN)]

    # At its end it is no longer in the way of another one.
    completed = search.run(command=["sh", "-c", "exit 3"])
    assert completed.returncode == CheckError.exit_code
    assert f"{run_name(8)} should be good" in completed.stderr


def interrupt_when(command: Sequence[str], file: Path) -> None:
    """Start a search, interrupt it once a file is there, and require that it says so."""
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as running:
        while not file.exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == InterruptedStageError.exit_code


def test_stops_at_a_command_that_a_signal_ends(history: Sequence[Build], tmp_path: Path) -> None:
    publish_history(DirectoryStore(tmp_path / "runs"), history, first=8)
    search = search_runs(tmp_path, tmp_path / "runs", 8, 13)

    completed = search.run("--no-verify", command=["sh", "-c", "kill -SEGV $$"])

    assert completed.returncode == ProcessError.exit_code
    assert "SIGSEGV" in completed.stderr


def write_refs(path: Path, torch: str) -> None:
    """Write data with a ref of torch alone, whose source is that of the sample but for some fields."""
    path.write_text(
        f'[refs.{TORCH_REF}]\nextends = "sample"\ncomponents = ["torch"]\ntorch = {{ {torch} }}\n'
    )


def test_builds_what_a_run_lacks_at_the_commits_of_its_lock(tmp_path: Path) -> None:
    clone = Clone.create(tmp_path / "checkout")
    store = DirectoryStore(tmp_path / "runs")
    refs = tmp_path / "mine.toml"
    options = ("--store", store.url, "--config-file", refs)
    write_refs(refs, 'ref = "nightly"')
    target = ("--torch-ref", TORCH_REF, "--gpu-family", "cpu", "--run-id", "1")
    clone.run_checked("pytorch_build", "resolve", *options, *target)
    lock_key = runs.run_outputs("1").source_lock_key(TORCH_REF)
    # Runs on both sides of it have wheels, and were resolved alike.
    for number in (0, 2):
        store.put_bytes(runs.run_outputs(f"{number}").source_lock_key(TORCH_REF), store.read(lock_key))
        wheel = write_wheel(tmp_path / "dist", version=f"2.9.{number}", files={"torch.py": ""})
        publish_build(store, wheel, run_id=f"{number}", started=time_of(number))
    wheel = write_wheel(tmp_path / "dist", version="2.9.1", files={"torch.py": ""})
    store.delete(publish_build(store, wheel, run_id="1", started=time_of(1)))
    ends = ("--good", "0", "--bad", "2", "--reset", "--build")
    search = ("ci", "bisect", *options, *ends, "--", "sh", "-c", "[ $BISECT_RUN != 2 ]")

    # The refs data has another repository by now, and then another branch of the same one.
    write_refs(refs, 'origin = "/elsewhere", ref = "nightly"')
    refused = clone.run(*search)
    write_refs(refs, 'ref = "main"')
    printed = clone.run_checked(*search)

    assert "another origin of torch" in printed_by(refused)
    assert "The first bad one is 2, of 2025-11-03 03:00; the last good one is 1." in printed
    built_lock = clone.path / "out/local-bisect-1-linux/manifests" / f"source-lock-{TORCH_REF}.json"
    assert torch_commit(built_lock.read_text()) == torch_commit(store.read(lock_key).decode())


def torch_commit(lock: str) -> str:
    """Return the commit of torch that a source lock has."""
    commit: str = json.loads(lock)["projects"]["torch"]["commit"]
    return commit


def test_searches_the_versions_of_an_index_by_their_days(tmp_path: Path) -> None:
    for day in range(13, 21):
        commit = f"{day * 10**38:040}"
        files = {
            "torch/__init__.py": "",
            "torch/version.py": f"git_version = '{commit}'\nbroken = {int(day >= 17)}\n",
        }
        for base_version in ("2.11.0a0", "2.9.1"):
            version = f"{base_version}+rocm7.{day // 20}.0a202511{day}"
            write_wheel(tmp_path / "dist", version=version, files=files)
    options = ("--find-links", tmp_path / "dist", "--gpu-family", "gfx942", "--repeat", "2")
    search = Search(state=tmp_path / "state", good="2025-11-14", bad="2025-11-19", options=options)

    completed = search.run(
        command=["python", "-c", "from torch.version import broken; raise SystemExit(broken)"]
    )

    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert "Searched is 2.11.0a0;" in completed.stderr
    assert result["last_good"] == "2.11.0a0+rocm7.0.0a20251116"
    assert result["first_bad"] == "2.11.0a0+rocm7.0.0a20251117"
    assert result["changes"][0]["more"][0] == "git log --oneline 160000000000..170000000000"
    assert result["changes"][1]["what"] == "installed torch"


def publish_rocm_builds(store: Store, folder: Path, repository: str, *, count: int) -> None:
    """Leave runs of ROCm, day by day, with a new commit of a submodule every second day."""
    for number in range(count):
        submodule: dict[str, Any] = {
            "submodule_name": "libraries",
            "submodule_url": f"{repository}.git",
            "pin_sha": f"{number // 2}" * 40,
        }
        manifest = json.dumps({"the_rock_commit": "c" * 40, "submodules": [submodule]})
        files = {
            "_rocm_sdk_core/share/therock/therock_manifest.json": manifest,
            "number.py": f"number = {number}",
        }
        version = f"7.10.0a2025110{number + 1}"
        wheel = write_wheel(folder, name="rocm-sdk-core", version=version, files=files)
        publish_build(
            store,
            wheel,
            run_id=f"{100 + number}",
            started=time_of(number),
            step="build_rocm",
            family="gfx942",
            torch_ref="",
            python="",
        )


def test_searches_rocm_alone_by_the_commits_of_its_build(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "runs")
    repository = "https://github.com/ROCm/rocm-libraries"
    publish_rocm_builds(store, tmp_path / "dist", repository, count=6)
    options = ("--rocm", "--packages", "rocm-sdk-core", "--store", tmp_path / "runs")
    search = Search(state=tmp_path / "state", good="7.10.0a20251101", bad="2025-11-06", options=options)

    completed = search.run(command=["python", "-c", "import number; raise SystemExit(number.number > 3)"])

    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result["last_good"] == "103"
    assert result["first_bad"] == "104"
    comparison = f"{repository}/compare/111111111111...222222222222"
    assert result["changes"][0]["more"] == ["git log --oneline 111111111111..222222222222", comparison]
