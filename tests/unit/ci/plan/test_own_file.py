"""One file of the user's over the project's data: found, merged, explained, and as the guide shows it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ci.publish.buckets import buckets
from ci.verbs import cells
from core.cli import options
from core.cli.options import ROOT, use_config_file
from core.data import LAYERED, in_force, own, use_own
from core.errors import MissingInputError
from core.families import default_family, family
from core.run.locations import run_buckets
from core.run.plan import Plan
from pytorch_build.build.machine import load_needs
from pytorch_build.refs.torch_refs import load_refs
from tests.kit.front_doors import run_ci

GUIDE = (ROOT / "docs" / "fork_and_downstream.md").read_text(encoding="utf-8")
BRANCH = (
    '# ours\n[matrix.ci]\npythons = [\n  "3.13",\n]\n\n[[matrix.ci.exclude]]\ngpu_families = ["gfx1151"]\n'
)


def guides() -> tuple[str, str]:
    """Return the guide's file, and what it says that it plans."""
    found = re.search(
        r"commit `pytorch-build.toml`:\n\n```toml\n(.*?)```\n\n```bash.*?```\n\n(.*?)\n\n", GUIDE, re.DOTALL
    )
    assert found
    return found[1], " ".join(found[2].split())


def configured(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run_ci("configure", *words) == 0
    return capsys.readouterr().out


def test_the_guides_file_plans_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, said = guides()
    (tmp_path / "own.toml").write_text(text)
    words = ("--event", "push", "--config-file", str(tmp_path / "own.toml"))
    made = Plan.model_validate_json(configured(capsys, *words, "--json"))
    assert said.startswith(f"plans {len(made.cells)} jobs: ")
    assert {cell.gpu_family for cell in made.cells} == set(re.findall(r"for `(gfx\S+)`", said))
    builds = {cell.runner for cell in made.cells if cell.stage.startswith("build")}
    assert (builds, {cell.runner for cell in made.cells} - builds) == ({"my-builder"}, {"my-mi300"})
    assert f"go to `{made.store.store}`" in said
    assert {cell.torch_ref for cell in made.cells} == {"", "my-branch"}
    # MATRIX=ci has the same cells, and a dispatch of all families the same jobs
    matrix = cells.load_matrix("ci", tmp_path)
    assert matrix.gpu_families == {"linux": ("gfx94X-lab",)}
    every = configured(
        capsys, "--event", "workflow_dispatch", "--input=linux_amdgpu_families=all", *words[2:], "--json"
    )
    assert {cell.name for cell in Plan.model_validate_json(every).cells} == {cell.name for cell in made.cells}
    # the same release types and families of ours are there on request
    assert cells.expand(cells.load_matrix("release", tmp_path), load_refs(), "linux")["build_torch"]


def test_every_stage_reads_the_same_file(tmp_path: Path) -> None:
    ours = "[families.gfx94X-dcgpu]\ndefault = false\n[needs.gpu.triton]\ndisk = 3\n"
    (tmp_path / "own.toml").write_text(guides()[0] + ours)
    use_own(tmp_path / "own.toml")
    assert load_needs().gpu["triton"].disk == 3
    assert family("gfx94X-lab").targets == ("gfx942",)
    assert default_family(["gfx942"]) == "gfx942"
    assert run_buckets().repository == buckets().repository == "my-organisation/wheels"
    assert buckets().release_types["nightly"].bucket == "therock-nightly-artifacts"
    use_own(None)
    assert default_family(["gfx942"]) == "gfx94X-dcgpu"


def test_the_option_comes_first_then_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "ROOT", tmp_path)
    assert (use_config_file(None), own().file) == (None, None)
    (tmp_path / "pytorch-build.toml").write_text("")
    (tmp_path / "ci.toml").write_text("")
    assert (use_config_file(None), own().file) == (None, tmp_path / "pytorch-build.toml")
    monkeypatch.setenv("CI_CONFIG", "ci.toml")
    assert (use_config_file(None), own().file) == (None, tmp_path / "ci.toml")
    assert use_config_file(tmp_path / "pytorch-build.toml") == own().file == tmp_path / "pytorch-build.toml"
    monkeypatch.setenv("CI_CONFIG", "absent.toml")
    with pytest.raises(MissingInputError, match=r"absent\.toml does not exist(.|\n)*CI_CONFIG"):
        use_config_file(None)


def test_each_value_in_force_has_the_line_that_says_it(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(BRANCH)
    before = in_force()
    files = set()
    for one in before.values():
        file, _, line = one.where.partition(":")
        statement = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert (
            re.split(r"[.\[]", one.key)[-1].strip('"') in statement or "{" in statement or "[[" in statement
        ), one
        files.add(ROOT / file)
    assert files == {*LAYERED}
    use_own(tmp_path / "own.toml")
    found = in_force()
    assert found.keys() == before.keys() | {"matrix.ci.exclude"}
    said = [found[f"matrix.ci.{key}"].where for key in ("pythons", "exclude")]
    assert said == [f"{tmp_path / 'own.toml'}:{line}" for line in (3, 7)]
    assert found["matrix.ci.pythons"].instead_of == before["matrix.ci.pythons"]
    assert found["matrix.release.pythons"] == before["matrix.release.pythons"]


def test_a_plan_is_explained_by_lines_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.toml"
    file.write_text(guides()[0])
    words = ("--config-file", str(file), "--event", "push", "--explain", "matrix.ci")
    said = configured(capsys, *words)
    line = file.read_text().splitlines().index('torch_refs = ["my-branch"]') + 1
    assert (
        f'matrix.ci.torch_refs = ["my-branch"]\n    {file}:{line}\n    in the place of ["nightly"], ci/m'
        in said
    )
    assert (
        f"\n    my-branch: matrix.ci.torch_refs, {file}:{line}\n    3.12: matrix.ci.pythons, ci/matrix.toml:"
        in said
    )
    found: dict[str, Any] = json.loads(configured(capsys, *words, "--json"))
    assert [job["stage"] for job in found["jobs"]][:2] == ["build_rocm", "build_pytorch"]
    keys = {row["of"]: row["key"] for row in found["jobs"][-1]["because"]}
    assert keys["my-mi300"] == "runners.families.gfx94X-lab.linux.test_runner"
    assert {row["key"] for row in found["values"]} >= {"matrix.ci.pythons", "matrix.ci.tier"}
    assert configured(capsys, *words[:2], "--explain", "upload").count("ci/upload.toml:") == len(
        tomllib.loads((ROOT / "ci" / "upload.toml").read_text())
    )
    assert run_ci("configure", "--explain", "matrx") == 2
    assert "Did you mean 'matrix'" in capsys.readouterr().err
