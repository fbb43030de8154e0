from collections.abc import Sequence
from pathlib import Path

import pytest

from core.data import load_toml
from core.errors import DataError
from pytorch_build.build import container
from pytorch_build.build.container import Container, Job, command, inner_words, load_container

ROOT = Path("/home/dev/checkout")


def build_job(*arguments: str, root: Path = ROOT, present: frozenset[str] = frozenset()) -> Job:
    """Return a session that builds torch, with arguments; `present` are the machine's variables."""
    return Job(
        session="build_torch", python="3.12", words=arguments, root=root, user=(1000, 1001), present=present
    )


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what comes before the image and what comes after it."""
    position = list(words).index(load_container().image)
    return list(words[:position]), list(words[position + 1 :])


def option_values(words: Sequence[str], option: str) -> list[str]:
    """Return the words behind each use of an option."""
    return [words[position + 1] for position, word in enumerate(words) if word == option]


def test_starts_the_pinned_image_on_the_same_checkout_as_the_same_user() -> None:
    words = command("docker", build_job())

    options, _inner_command = split_command(words)
    assert options[:6] == ["docker", "run", "--rm", "--init", "--workdir", str(ROOT)]
    assert option_values(options, "--user") == ["1000:1001"]
    assert "--userns" not in options
    assert f"type=bind,source={ROOT},target={ROOT}" in options
    assert f"CCACHE_DIR={ROOT}/.cache/container/ccache" in options


def test_runs_the_session_inside_with_the_images_python() -> None:
    words = command("docker", build_job("--gpu-family", "gfx942"))

    _options, inner_command = split_command(words)
    assert inner_command[:2] == ["bash", "-ec"]
    assert inner_command[2].startswith('export PATH="/opt/python/cp312-cp312/bin:$PATH"\n')
    assert inner_command[-3:] == ["--", "--gpu-family", "gfx942"]
    assert option_values(inner_command, "--session") == ["build_torch"]
    assert option_values(inner_command, "--force-pythons") == ["3.12"]


def test_keeps_the_users_id_in_podman() -> None:
    assert option_values(command("podman", build_job()), "--userns") == ["keep-id"]


def test_hands_variables_on_by_name_where_the_machine_has_them() -> None:
    present = frozenset({"AWS_SECRET_ACCESS_KEY", "MAX_JOBS", "SECRET_OF_MINE", "HOME"})

    words = command("docker", build_job(present=present))

    handed_on = [setting for setting in option_values(words, "--env") if "=" not in setting]
    assert handed_on == ["AWS_SECRET_ACCESS_KEY", "MAX_JOBS"]
    assert not any("SECRET_OF_MINE" in word for word in words)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (
            ["torch", "--python=/x/bin/python", "--container=podman", "--torch-ref", "torch", "--clean"],
            ("--torch-ref", "torch", "--clean"),
        ),
        (["--python", "/x", "torch", "--container"], ()),
        (["torch", "--container", "podman", "--clean"], ("--clean",)),
    ],
)
def test_drops_the_container_the_project_and_the_machines_python_from_arguments(
    arguments: list[str], kept: tuple[str, ...]
) -> None:
    # The options of the session, as its parser declares them.
    assert inner_words(arguments, **{"project": {}, "--container": {"nargs": "?"}}) == kept


def test_mounts_each_path_outside_of_the_checkout_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree = tmp_path / "tree"
    store = tmp_path / "store"
    for folder in (root / "src", tree / "sub", store):
        folder.mkdir(parents=True)
    arguments = ["--pytorch-dir", str(tree), f"--store={store}", str(tree / "sub"), str(root / "src")]
    not_paths = ["/absent/folder", "src", f"https://host{tree}", "s3://bucket"]

    words = command("docker", build_job(*arguments, *not_paths, root=root))

    mounts = [word.partition("target=")[2] for word in words if word.startswith("type=bind")]
    assert mounts == [str(root), str(store), str(tree)]


def test_rejects_an_image_without_a_digest(tmp_path: Path) -> None:
    data = container.DATA.read_text(encoding="utf-8")
    path = tmp_path / "container.toml"
    path.write_text(data.replace(load_container().image, "quay.io/pypa/manylinux_2_28_x86_64:latest"))

    with pytest.raises(DataError, match="digest"):
        load_toml(path, Container)
