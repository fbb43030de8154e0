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
BUILD = f"build_torch-{TORCH_REF}-{PYTHON}"
# The first of the runs, which follow one another day by day.
BEGINNING = datetime(2025, 11, 1, 3, tzinfo=UTC)

# Numbers of runs: which break the command, and which cannot be tested.
RUN_COUNT = 16
BROKEN = 11
NOT_BUILT = {2, 9}
WITHOUT_WHEEL = {10, 14}
NOT_BEGUN = {5}
LAST_GOOD = 8

# What searches run: it appends the run to the file $0, and fails where torch is broken.
TEST_TORCH = 'echo $BISECT_RUN >> "$0"; python -c "import torch; raise SystemExit(torch.broken)"'
COMMAND = ("sh", "-c", TEST_TORCH)


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
    step: str = "build_torch",
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
        step=step,
        family=family,
        torch_ref=torch_ref,
        python=python,
        files=(file,),
        started=started,
    )
    return file.key


@dataclass(frozen=True, kw_only=True)
class Build:
    """What one commit gives: a wheel, and the lock that names it."""

    lock: SourceLock
    wheel: Path


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Build]:
    """Return the builds of a repository's commits, from the oldest on."""
    folder = tmp_path_factory.mktemp("history")
    repository = folder / "torch"
    modules = [torch_module(number) for number in range(RUN_COUNT)]
    messages = [commit_message(number) for number in range(RUN_COUNT)]
    commits = repos.import_history(repository, path="torch.py", texts=modules, messages=messages)

    builds = []
    for number, commit in enumerate(commits):
        version = f"2.10.0a0+cpu.git{commit[:8]}"
        wheel = write_wheel(
            folder / "dist",
            version=version,
            tag=f"{PYTHON}-{PYTHON}-linux_x86_64",
            files={"torch.py": modules[number]},
        )
        lock = source_lock(number, repository, commit=commit, version=version)
        builds.append(Build(lock=lock, wheel=wheel))
    return builds


def torch_module(number: int) -> str:
    """Return torch as a commit has it: broken or not."""
    is_broken = number >= BROKEN
    return f"broken = {int(is_broken)}\nnumber = {number}\n"


def commit_message(number: int) -> str:
    """Return what a commit says of itself."""
    return "break it" if number == BROKEN else f"change {number}"


def source_lock(number: int, repository: Path, *, commit: str, version: str) -> SourceLock:
    """Return the lock of a run that builds a commit of torch."""
    torch = LockedProject(
        project="torch",
        origin=str(repository),
        commit=commit,
        base_version="2.10.0a0",
        versions={"cpu": version},
    )
    return SourceLock(
        resolved=time_of(number),
        torch_ref=TORCH_REF,
        release_type="dev",
        projects={"torch": torch},
    )


def publish_history(store: Store, history: Sequence[Build], *, first: int = 0) -> None:
    """Leave each build as a run, or those from the number `first` on."""
    for number in range(first, RUN_COUNT):
        build = history[number]
        run_id = run_name(number)
        publish_lock(store, run_id, build.lock.model_dump_json().encode())
        if number in NOT_BEGUN:
            continue
        if number in NOT_BUILT:
            record_failed_build(store, run_id, started=time_of(number))
            continue
        key = publish_build(store, build.wheel, run_id=run_id, started=time_of(number))
        if number in WITHOUT_WHEEL:
            store.delete(key)


def publish_lock(store: Store, run_id: str, lock: bytes) -> None:
    """Leave a source lock in a run."""
    store.put_bytes(lock_key(run_id), lock)


def lock_key(run_id: str) -> str:
    """Return where a run has its source lock."""
    return runs.run_outputs(run_id).source_lock_key(TORCH_REF)


def record_failed_build(store: Store, run_id: str, *, started: str) -> None:
    """Leave the record of a build of torch that failed."""
    runs.write_record(
        store,
        runs.run_outputs(run_id),
        step="build_torch",
        family="cpu",
        torch_ref=TORCH_REF,
        python=PYTHON,
        started=started,
        error="failed",
    )


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search between two runs, versions or days."""

    state: Path
    good: str
    bad: str
    options: Sequence[str]

    def command_line(self, *more_options: str, command: Sequence[str]) -> list[str]:
        """Return the command line that begins or continues the search."""
        return [
            sys.executable,
            "-m",
            "ci",
            "bisect",
            "--json",
            f"--state={self.state}",
            f"--good={self.good}",
            f"--bad={self.bad}",
            *self.options,
            *more_options,
            "--",
            *command,
        ]

    def run(self, *more_options: str, command: Sequence[str]) -> process.Completed:
        """Begin or continue the search."""
        command_line = self.command_line(*more_options, command=command)
        return process.capture(command_line, cwd=ROOT, env=process.inherited(), check=False)

    def find(self, command: Sequence[str]) -> dict[str, Any]:
        """Run the search, which has to succeed; return its result."""
        completed = self.run(command=command)
        assert completed.returncode == 0, completed.stderr
        result: dict[str, Any] = json.loads(completed.stdout)
        return result


def search_runs(tmp_path: Path, store: str, good: int, bad: int) -> Search:
    """Return a search between two runs of a store."""
    return Search(
        state=tmp_path / "state",
        good=run_name(good),
        bad=run_name(bad),
        options=(f"--store={store}",),
    )


def run_names(tested: Path) -> list[str]:
    """Return the runs that a search has tested, as its command lists them in a file."""
    return tested.read_text().split()


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
    # A search tests both ends, and then halves what is left.
    tested_runs = run_names(tested)
    assert len(tested_runs) <= 2 + 4
    assert read_newest_change(result) == "break it"

    # A search that has ended tells its result again, and tests nothing.
    repeated = search.run(command=[*COMMAND, str(tested)])
    assert repeated.stdout == completed.stdout
    assert run_names(tested) == tested_runs


def read_newest_change(result: dict[str, Any]) -> str:
    """Return the newest change of torch that git lists by the command that a result has."""
    (torch,) = [change for change in result["changes"] if change["what"] == "torch"]
    log_command = torch["more"][0].replace("--oneline", "--format=%s")
    log = process.capture(log_command.split()).stdout
    return log.splitlines()[0]


def test_every_command_of_the_page_for_the_sample_runs_as_it_stands(sample_run: SampleRun) -> None:
    page = (ROOT / "docs" / "bisect.md").read_text(encoding="utf-8")
    section = page.partition("## On the sample")[2].partition("\n## ")[0]

    with sample.lend_workshop(sample_run) as path:
        printed = run_page(Clone(path=path), section)

    assert "The first bad one is local-broken" in printed


def test_names_two_runs_that_have_nothing_in_common(history: Sequence[Build], tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    publish_build(
        store,
        history[0].wheel,
        run_id=run_name(0),
        started=time_of(0),
    )
    publish_build(
        store,
        history[1].wheel,
        run_id=run_name(1),
        started=time_of(1),
        torch_ref="other",
    )

    refused = search_runs(tmp_path, store.url, 0, 1).run(command=["true"])

    assert refused.returncode == UsageError.exit_code
    assert f"{run_name(0)} and {run_name(1)}" in refused.stderr
    assert "torch ref" in refused.stderr


def test_lists_a_run_without_a_record_by_the_time_of_its_lock(
    history: Sequence[Build], tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path / "runs")
    publish_history(store, history, first=4)
    search = search_runs(tmp_path, store.url, 4, 7)

    dry_run = search.run("--dry-run", command=["true"])

    assert dry_run.returncode == 0, dry_run.stderr
    assert f"{run_name(5)}  2025-11-06T03:00  " in dry_run.stderr


def test_plans_how_many_tests_a_search_takes(history: Sequence[Build], tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "runs")
    publish_history(store, history, first=8)
    search = search_runs(tmp_path, store.url, 8, 13)

    dry_run = search.run("--dry-run", command=["true"])

    assert f"{run_name(9)}  2025-11-10T03:00  {BUILD}: " in dry_run.stderr
    assert "6 in all, 1 without wheels" in dry_run.stderr
    assert f"4 tests at most, the next at {run_name(8)}" in dry_run.stderr


def test_continues_an_interrupted_search_and_refuses_another(
    history: Sequence[Build], tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path / "runs")
    publish_history(store, history, first=8)
    search = search_runs(tmp_path, store.url, 8, 13)
    tested = tmp_path / "tested"
    command = waiting_command(tested, ends=f"{run_name(8)}|{run_name(13)}")

    interrupt_when(search.command_line(command=command), tmp_path / "tested.at")
    assert len(run_names(tested)) == 2

    refused = search.run(command=["true"])
    assert refused.returncode == UsageError.exit_code
    options = search.command_line(command=command)[4:]
    assert f"\npython -m ci bisect {shlex.join(options)}\n" in refused.stderr

    (tmp_path / "tested.go").touch()
    result = search.find(command)
    assert result["first_bad"] == run_name(BROKEN)
    # Each run was tested once.
    assert run_names(tested) == [run_name(8), run_name(13), run_name(BROKEN)]

    # At its end a search is no longer in the way of another one.
    completed = search.run(command=["sh", "-c", "exit 3"])
    assert completed.returncode == CheckError.exit_code
    assert f"{run_name(8)} should be good" in completed.stderr


def waiting_command(tested: Path, *, ends: str) -> list[str]:
    """Return the usual command, which waits between the ends of a search until `tested`.go is there.

    Meanwhile `tested`.at is there, so that the search can be interrupted.
    """
    wait = '[ -e "$0.go" ] || { touch "$0.at"; sleep 60; }'
    wait_between = f"case $BISECT_RUN in {ends}) ;; *) {wait};; esac"
    return ["sh", "-c", f"{wait_between}; {TEST_TORCH}", str(tested)]


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
    store = DirectoryStore(tmp_path / "runs")
    publish_history(store, history, first=8)
    search = search_runs(tmp_path, store.url, 8, 13)

    completed = search.run("--no-verify", command=["sh", "-c", "kill -SEGV $$"])

    assert completed.returncode == ProcessError.exit_code
    assert "SIGSEGV" in completed.stderr


def write_refs(path: Path, torch_fields: str) -> None:
    """Write data with a ref of torch alone, whose source is that of the sample but for some fields."""
    path.write_text(f"""\
        [refs.{TORCH_REF}]
        extends = "sample"
        components = ["torch"]
        torch = {{ {torch_fields} }}
        """)


def publish_small_torch(store: Store, folder: Path, number: int) -> str:
    """Leave a torch without content in the run of a number; return the wheel's key."""
    wheel = write_wheel(folder, version=f"2.9.{number}", files={"torch.py": ""})
    return publish_build(store, wheel, run_id=f"{number}", started=time_of(number))


def test_builds_what_a_run_lacks_at_the_commits_of_its_lock(tmp_path: Path) -> None:
    clone = Clone.create(tmp_path / "checkout")
    store = DirectoryStore(tmp_path / "runs")
    refs = tmp_path / "mine.toml"
    options = (f"--store={store.url}", f"--config-file={refs}")
    write_refs(refs, 'ref = "nightly"')
    target = (f"--torch-ref={TORCH_REF}", "--gpu-family=cpu", "--run-id=1")
    clone.run_checked("pytorch_build", "resolve", *options, *target)
    lock = store.read(lock_key("1"))

    # Run 1 has lost its wheel. Runs on both sides of it have wheels, and were resolved alike.
    dist = tmp_path / "dist"
    store.delete(publish_small_torch(store, dist, 1))
    publish_lock(store, "0", lock)
    publish_small_torch(store, dist, 0)
    publish_lock(store, "2", lock)
    publish_small_torch(store, dist, 2)

    search = (
        "ci",
        "bisect",
        *options,
        "--good=0",
        "--bad=2",
        "--reset",
        "--build",
        "--",
        "sh",
        "-c",
        "[ $BISECT_RUN != 2 ]",
    )

    # The refs data has another repository by now, and then another branch of the same one.
    write_refs(refs, 'origin = "/elsewhere", ref = "nightly"')
    refused = clone.run(*search)
    write_refs(refs, 'ref = "main"')
    printed = clone.run_checked(*search)

    assert "another origin of torch" in printed_by(refused)
    assert "The first bad one is 2, of 2025-11-03 03:00; the last good one is 1." in printed
    manifests = clone.outputs_of("local-bisect-1") / "manifests"
    built_lock = manifests / f"source-lock-{TORCH_REF}.json"
    assert torch_commit(built_lock.read_bytes()) == torch_commit(lock)


def torch_commit(lock: bytes) -> str:
    """Return the commit of torch that a source lock has."""
    commit: str = json.loads(lock)["projects"]["torch"]["commit"]
    return commit


def write_torch_wheels_of_a_day(folder: Path, day: int) -> None:
    """Write the wheels that an index got on a day of November: of the main branch, and of a release."""
    is_broken = day >= 17
    commit = f"{day * 10**38:040}"
    rocm_version = f"7.{day // 20}.0a202511{day}"
    files = {
        "torch/__init__.py": "",
        "torch/version.py": f"git_version = '{commit}'\nbroken = {int(is_broken)}\n",
    }
    write_wheel(folder, version=f"2.11.0a0+rocm{rocm_version}", files=files)
    write_wheel(folder, version=f"2.9.1+rocm{rocm_version}", files=files)


def test_searches_the_versions_of_an_index_by_their_days(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    for day in range(13, 21):
        write_torch_wheels_of_a_day(dist, day)
    search = Search(
        state=tmp_path / "state",
        good="2025-11-14",
        bad="2025-11-19",
        options=(f"--find-links={dist}", "--gpu-family=gfx942", "--repeat=2"),
    )

    completed = search.run(
        command=["python", "-c", "from torch.version import broken; raise SystemExit(broken)"]
    )

    assert completed.returncode == 0, completed.stderr
    assert "Searched is 2.11.0a0;" in completed.stderr
    result = json.loads(completed.stdout)
    assert result["last_good"] == "2.11.0a0+rocm7.0.0a20251116"
    assert result["first_bad"] == "2.11.0a0+rocm7.0.0a20251117"
    commits = result["changes"][0]
    wheels = result["changes"][1]
    assert commits["more"][0] == "git log --oneline 160000000000..170000000000"
    assert wheels["what"] == "installed torch"


LIBRARIES_REPOSITORY = "https://github.com/ROCm/rocm-libraries"


def publish_rocm_build(store: Store, folder: Path, number: int) -> None:
    """Leave a run of ROCm; every second one has a new commit of a submodule."""
    submodule = {
        "submodule_name": "libraries",
        "submodule_url": f"{LIBRARIES_REPOSITORY}.git",
        "pin_sha": f"{number // 2}" * 40,
    }
    manifest = {"the_rock_commit": "c" * 40, "submodules": [submodule]}
    wheel = write_wheel(
        folder,
        name="rocm-sdk-core",
        version=f"7.10.0a2025110{number + 1}",
        files={
            "_rocm_sdk_core/share/therock/therock_manifest.json": json.dumps(manifest),
            "number.py": f"number = {number}",
        },
    )
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
    for number in range(6):
        publish_rocm_build(store, tmp_path / "dist", number)
    search = Search(
        state=tmp_path / "state",
        good="7.10.0a20251101",
        bad="2025-11-06",
        options=("--rocm", "--packages=rocm-sdk-core", f"--store={store.url}"),
    )

    result = search.find(["python", "-c", "import number; raise SystemExit(number.number > 3)"])

    assert result["last_good"] == "103"
    assert result["first_bad"] == "104"
    libraries = result["changes"][0]
    assert libraries["more"] == [
        "git log --oneline 111111111111..222222222222",
        f"{LIBRARIES_REPOSITORY}/compare/111111111111...222222222222",
    ]
