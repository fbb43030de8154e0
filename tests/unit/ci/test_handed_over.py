"""What jobs hand over, by the real steps of both actions; a copy of files stands for GitHub's artifact."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from core import process
from core.cli.options import ROOT
from core.errors import ProcessError
from tests.kit.github_expressions import expand
from tests.kit.windows import make_link
from tests.kit.workflow_files import steps

pytestmark = pytest.mark.processes

ACTIONS = ROOT / ".github" / "actions"
NAME = "pytorch-gfx942-1"
TAKING = "actions/download-artifact@"
DIGEST = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The folder that the steps of a job run in."""

    folder: Path

    def write(self, name: str, text: str = "text") -> None:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def files(self) -> Mapping[str, str]:
        """Return the text of each file."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}

    def run_step(self, action: str, name: str, contexts: Mapping[str, Any]) -> Mapping[str, str]:
        """Run a step of an action as GitHub does, and return its outputs."""
        (step,) = [step for step in steps_of_action(action) if step.get("id") == name]
        output = self.folder.with_name("output")
        output.write_text("", encoding="utf-8")
        environment = {key: expand(value, contexts) for key, value in step["env"].items()}

        process.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env=process.inherited(GITHUB_OUTPUT=str(output), **environment),
        )

        lines = output.read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def hand_over(self, paths: str) -> str:
        """Return the id of what lies in some paths."""
        contexts = {"inputs": {"path": paths}, "steps": {"name": {"outputs": {"name": NAME}}}}
        return self.run_step("hand_over", "identify", contexts)["artifact_id"]

    def take_over(self, artifact_id: str, artifact: Mapping[str, str], path: str) -> None:
        """Take an artifact over whose files are as GitHub has them now."""
        inputs = {"artifact_id": artifact_id, "path": path}
        outputs = self.run_step("take_over", "artifact", {"inputs": inputs})
        for name, text in artifact.items():
            self.write(f"{outputs['folder']}/{name}", text)
        contexts = {"inputs": inputs, "steps": {"artifact": {"outputs": outputs}}}
        self.run_step("take_over", "compare", contexts)


def steps_of_action(name: str) -> list[dict[str, Any]]:
    """Return the steps of one of the actions in this repository."""
    action = yaml.safe_load((ACTIONS / name / "action.yml").read_text(encoding="utf-8"))
    written: list[dict[str, Any]] = action["runs"]["steps"]
    return written


def make_workspace(folder: Path) -> Workspace:
    """Return a workspace that has a checkout."""
    workspace = Workspace(folder=folder / "workspace")
    workspace.write("noxfile.py", "checkout")
    return workspace


@pytest.fixture
def giver(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "giver")


@pytest.fixture
def taker(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "taker")


def test_a_folder_arrives_as_it_was_handed_over(giver: Workspace, taker: Workspace) -> None:
    giver.write("out/wheels/a b.whl", "wheel")
    giver.write("out/.hidden", "hidden")
    artifact = {"wheels/a b.whl": "wheel", ".hidden": "hidden"}

    taker.take_over(giver.hand_over("out"), artifact, "out")

    assert taker.files() == {"noxfile.py": "checkout", "out/wheels/a b.whl": "wheel", "out/.hidden": "hidden"}


@pytest.mark.parametrize(
    "artifact",
    [
        {"plan.json": "plan", "out/manifests/lock.json": "lock"},
        {"out/manifests/lock.json": "lock"},
    ],
    ids=["all", "one-is-absent"],
)
def test_several_paths_arrive_below_the_checkout(
    giver: Workspace, taker: Workspace, artifact: Mapping[str, str]
) -> None:
    for name, text in artifact.items():
        giver.write(name, text)
    taker.write("out/manifests/lock.json", "older")

    taker.take_over(giver.hand_over("plan.json\nout\n"), artifact, ".")

    assert taker.files() == {"noxfile.py": "checkout", **artifact}


def test_a_link_is_handed_over_as_what_it_names(giver: Workspace, taker: Workspace) -> None:
    giver.write("out/librocm.so.1", "library")
    make_link(giver.folder / "out" / "librocm.so", "librocm.so.1")
    artifact = {"librocm.so.1": "library", "librocm.so": "library"}

    taker.take_over(giver.hand_over("out"), artifact, "out")

    assert set(taker.files()) == {"noxfile.py", "out/librocm.so.1", "out/librocm.so"}


@pytest.mark.parametrize(
    "artifact",
    [
        {"torch.whl": "another"},
        {"renamed.whl": "wheel"},
        {"torch.whl": "wheel", "noxfile.py": "another"},
        {},
    ],
    ids=["changed", "renamed", "added", "emptied"],
)
def test_nothing_of_an_artifact_that_was_replaced_arrives(
    giver: Workspace, taker: Workspace, artifact: Mapping[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    giver.write("out/torch.whl", "wheel")
    artifact_id = giver.hand_over("out")

    with pytest.raises(ProcessError):
        taker.take_over(artifact_id, artifact, ".")

    assert NAME in capfd.readouterr().out
    assert taker.files()["noxfile.py"] == "checkout"
    assert "torch.whl" not in taker.files()


@pytest.mark.parametrize(
    "artifact_id",
    ["", "17", "name", f"@{DIGEST}", "name@", f"name@{DIGEST[1:]}", f"name=1\nname@{DIGEST}"],
    ids=["empty", "number", "name", "no-name", "no-digest", "short-digest", "two-lines"],
)
def test_an_id_without_a_name_or_digest_is_refused(taker: Workspace, artifact_id: str) -> None:
    with pytest.raises(ProcessError):
        taker.take_over(artifact_id, {}, "out")


def steps_that_take() -> Iterator[Mapping[str, Any]]:
    """Yield every step of a workflow or an action that takes an artifact of GitHub's."""
    for step in steps():
        if TAKING in step.action:
            yield step.tree
    for path in ACTIONS.iterdir():
        for tree in steps_of_action(path.name):
            if TAKING in tree.get("uses", ""):
                yield tree


def test_every_artifact_is_found_by_its_name_however_many_a_run_has() -> None:
    inputs = [step["with"] for step in steps_that_take()]

    assert len(inputs) > 3
    for names in inputs:
        assert names["name"]
        # A list of artifacts ends after 1000.
        assert not {"artifact-ids", "pattern", "merge-multiple"} & set(names)
