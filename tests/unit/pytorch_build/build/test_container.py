from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.data import load_toml
from core.errors import DataError
from pytorch_build.build import container
from pytorch_build.build.container import Container, Job, command, inner_words, load_container

ROOT = Path("/home/dev/checkout")
OUTER: dict[str, Any] = {"project": {}, "--container": {"nargs": "?"}}


def job(*words: str, present: frozenset[str] = frozenset()) -> Job:
    return Job(
        session="build_torch", python="3.12", words=words, root=ROOT, user=(1000, 1001), present=present
    )


def test_the_session_runs_in_the_pinned_image_on_the_same_checkout() -> None:
    data = load_container()
    words = command("docker", job("--gpu-family", "gfx942"))
    assert words[:6] == ("docker", "run", "--rm", "--init", "--workdir", str(ROOT))
    at = words.index(data.image)
    options, inner = words[:at], words[at + 1 :]
    assert options[options.index("--user") + 1] == "1000:1001"
    assert "--userns" not in options
    assert f"type=bind,source={ROOT},target={ROOT}" in options
    assert f"CCACHE_DIR={ROOT}/.cache/container/ccache" in options
    assert inner[:2] == ("bash", "-ec")
    assert inner[2].startswith('export PATH="/opt/python/cp312-cp312/bin:$PATH"\n')
    assert inner[-3:] == ("--", "--gpu-family", "gfx942")
    assert inner[inner.index("--session") + 1] == "build_torch"
    assert inner[inner.index("--force-pythons") + 1] == "3.12"
    podman = command("podman", job())
    assert podman[podman.index("--userns") + 1] == "keep-id"


def test_variables_are_handed_on_by_name_where_the_machine_has_them() -> None:
    present = frozenset({"AWS_SECRET_ACCESS_KEY", "MAX_JOBS", "SECRET_OF_MINE", "HOME"})
    words = command("docker", job(present=present))
    values = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    assert [value for value in values if "=" not in value] == ["AWS_SECRET_ACCESS_KEY", "MAX_JOBS"]
    assert not any("SECRET_OF_MINE" in word for word in words)


def test_posargs_lose_the_container_the_project_and_the_machines_python() -> None:
    words = ["torch", "--python=/x/bin/python", "--container=podman", "--torch-ref", "torch", "--clean"]
    assert inner_words(words, **OUTER) == ("--torch-ref", "torch", "--clean")
    assert inner_words(["--python", "/x", "torch", "--container"], **OUTER) == ()
    assert inner_words(["torch", "--container", "podman", "--clean"], **OUTER) == ("--clean",)


def test_paths_outside_of_the_checkout_are_mounted_once(tmp_path: Path) -> None:
    root, tree, other = tmp_path / "root", tmp_path / "tree", tmp_path / "other"
    for folder in (root / "src", tree / "sub", other):
        folder.mkdir(parents=True)
    words = ["--pytorch-dir", str(tree), f"--store={other}", str(tree / "sub"), str(root / "src")]
    words += ["/absent/folder", "src", f"https://host{tree}", "s3://bucket"]
    made = command("docker", replace(job(*words), root=root))
    mounted = [word.partition("target=")[2] for word in made if word.startswith("type=bind")]
    assert mounted == [str(root), str(other), str(tree)]


def test_an_image_without_a_digest_is_refused(tmp_path: Path) -> None:
    text = container.DATA.read_text(encoding="utf-8")
    path = tmp_path / "container.toml"
    path.write_text(text.replace(load_container().image, "quay.io/pypa/manylinux_2_28_x86_64:latest"))
    with pytest.raises(DataError, match="names no digest"):
        load_toml(path, Container)
