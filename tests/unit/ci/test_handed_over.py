"""What jobs hand over, by the real steps of both actions; a copy of files stands for GitHub's artifact."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.errors import ProcessError
from tests.kit.github_expressions import expand
from tests.kit.windows import make_link
from tests.kit.workflow_files import local_actions, steps

pytestmark = pytest.mark.processes

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
        """Return the text of each file, by its path below the folder."""
        texts: dict[str, str] = {}
        for path in self.folder.rglob("*"):
            if path.is_file():
                name = path.relative_to(self.folder).as_posix()
                texts[name] = path.read_text(encoding="utf-8")
        return texts

    def run_step(self, action: str, step_id: str, contexts: Mapping[str, Any]) -> Mapping[str, str]:
        """Run a step of an action as GitHub does, and return its outputs."""
        step = step_of_action(action, step_id)
        environment = {key: expand(value, contexts) for key, value in step["env"].items()}
        output_file = self.folder.with_name("output")
        output_file.write_text("", encoding="utf-8")

        process.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env=process.inherited(GITHUB_OUTPUT=str(output_file), **environment),
        )

        outputs: dict[str, str] = {}
        for line in output_file.read_text(encoding="utf-8").splitlines():
            name, value = line.split("=", 1)
            outputs[name] = value
        return outputs

    def hand_over(self, paths: str) -> str:
        """Return the id of what lies in some paths."""
        contexts = {
            "inputs": {"path": paths},
            "steps": {"name": {"outputs": {"name": NAME}}},
        }
        outputs = self.run_step("hand_over", "identify", contexts)
        return outputs["artifact_id"]

    def take_over(self, artifact_id: str, artifact: Mapping[str, str], path: str) -> None:
        """Take an artifact over whose files are as GitHub has them now."""
        inputs = {"artifact_id": artifact_id, "path": path}
        outputs = self.run_step("take_over", "artifact", {"inputs": inputs})

        for name, text in artifact.items():
            self.write(f"{outputs['folder']}/{name}", text)

        contexts = {"inputs": inputs, "steps": {"artifact": {"outputs": outputs}}}
        self.run_step("take_over", "compare", contexts)


def step_of_action(action: str, step_id: str) -> Mapping[str, Any]:
    """Return a step of one of the actions in this repository."""
    steps_of_action: list[Mapping[str, Any]] = local_actions()[action]["runs"]["steps"]
    (step,) = [step for step in steps_of_action if step.get("id") == step_id]
    return step


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

    assert taker.files() == {
        "noxfile.py": "checkout",
        "out/wheels/a b.whl": "wheel",
        "out/.hidden": "hidden",
    }


@pytest.mark.parametrize(
    "artifact",
    [
        {"plan.json": "plan", "out/manifests/lock.json": "lock"},
        {"out/manifests/lock.json": "lock"},
    ],
    ids=["all of them", "without the first one"],
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
        pytest.param({"torch.whl": "another"}, id="a changed file"),
        pytest.param({"renamed.whl": "wheel"}, id="a renamed file"),
        pytest.param({"torch.whl": "wheel", "noxfile.py": "another"}, id="a file more"),
        pytest.param({}, id="no file"),
    ],
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
    ids=[
        "empty",
        "a number",
        "a name alone",
        "without a name",
        "without a digest",
        "a digest that is too short",
        "two lines",
    ],
)
def test_an_id_without_a_name_or_digest_is_refused(taker: Workspace, artifact_id: str) -> None:
    with pytest.raises(ProcessError):
        taker.take_over(artifact_id, {}, "out")


def steps_that_take() -> Iterator[Mapping[str, Any]]:
    """Yield every step of a workflow or an action that takes an artifact of GitHub's."""
    for step in steps():
        if TAKING in step.action:
            yield step.tree
    for action in local_actions().values():
        for tree in action["runs"]["steps"]:
            if TAKING in tree.get("uses", ""):
                yield tree


def test_every_artifact_is_found_by_its_name_however_many_a_run_has() -> None:
    checked_steps = 0
    for step in steps_that_take():
        inputs = step["with"]
        assert inputs["name"]
        # A list of artifacts ends after 1000.
        assert not {"artifact-ids", "pattern", "merge-multiple"} & set(inputs)
        checked_steps += 1
    assert checked_steps > 3
