from collections.abc import Sequence
from pathlib import Path

import pytest

from core.data import load_toml
from core.errors import DataError
from pytorch_build.build import container
from pytorch_build.build.container import (
    Container,
    ContainerSession,
    arguments_inside,
    load_container,
    parser_of_options_outside,
    session_command,
)
from tests.kit.windows import not_on_windows

pytestmark = not_on_windows("wheels for manylinux are built on Linux alone")

ROOT = Path("/home/dev/checkout")


def build_torch(
    *arguments: str, root: Path = ROOT, machine_variables: frozenset[str] = frozenset()
) -> ContainerSession:
    """Return a session that builds torch, with arguments; `machine_variables` are the machine's variables."""
    return ContainerSession(
        name="build_torch",
        python="3.12",
        arguments=arguments,
        root=root,
        user=(1000, 1001),
        machine_variables=machine_variables,
    )


def split_command(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what comes before the image and what comes after it."""
    position = list(command).index(load_container().image)
    return list(command[:position]), list(command[position + 1 :])


def option_values(command: Sequence[str], option: str) -> list[str]:
    """Return the values of each use of an option."""
    return [command[position + 1] for position, argument in enumerate(command) if argument == option]


def test_starts_the_pinned_image_on_the_same_checkout_as_the_same_user() -> None:
    command = session_command("docker", build_torch())

    options, _inner_command = split_command(command)
    assert options[:6] == ["docker", "run", "--rm", "--init", "--workdir", str(ROOT)]
    assert option_values(options, "--user") == ["1000:1001"]
    assert "--userns" not in options
    assert f"type=bind,source={ROOT},target={ROOT}" in options
    assert f"CCACHE_DIR={ROOT}/.cache/container/ccache" in options


def test_runs_the_session_inside_with_the_images_python() -> None:
    command = session_command("docker", build_torch("--gpu-family", "gfx942"))

    _options, inner_command = split_command(command)
    assert inner_command[:2] == ["bash", "-ec"]
    assert inner_command[2].startswith('export PATH="/opt/python/cp312-cp312/bin:$PATH"\n')
    assert inner_command[-3:] == ["--", "--gpu-family", "gfx942"]
    assert option_values(inner_command, "--session") == ["build_torch"]
    assert option_values(inner_command, "--force-pythons") == ["3.12"]


def test_keeps_the_users_id_in_podman() -> None:
    assert option_values(session_command("podman", build_torch()), "--userns") == ["keep-id"]


def test_hands_variables_on_by_name_where_the_machine_has_them() -> None:
    machine_variables = frozenset({"AWS_SECRET_ACCESS_KEY", "MAX_JOBS", "SECRET_OF_MINE", "HOME"})

    command = session_command("docker", build_torch(machine_variables=machine_variables))

    handed_on = [setting for setting in option_values(command, "--env") if "=" not in setting]
    assert handed_on == ["AWS_SECRET_ACCESS_KEY", "MAX_JOBS"]
    assert not any("SECRET_OF_MINE" in argument for argument in command)


@pytest.mark.parametrize(
    ("arguments", "session_arguments"),
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
    arguments: list[str], session_arguments: tuple[str, ...]
) -> None:
    outside_parser = parser_of_options_outside()
    outside_parser.add_argument("project")
    outside_parser.add_argument("--container", nargs="?")

    assert arguments_inside(arguments, outside_parser) == session_arguments


def test_mounts_each_path_outside_of_the_checkout_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree = tmp_path / "tree"
    store = tmp_path / "store"
    for folder in (root / "src", tree / "sub", store):
        folder.mkdir(parents=True)
    arguments = ["--pytorch-dir", str(tree), f"--store={store}", str(tree / "sub"), str(root / "src")]
    not_paths = ["/absent/folder", "src", f"https://host{tree}", "s3://bucket"]

    command = session_command("docker", build_torch(*arguments, *not_paths, root=root))

    mounts = [argument.partition("target=")[2] for argument in command if argument.startswith("type=bind")]
    assert mounts == [str(root), str(store), str(tree)]


def test_rejects_an_image_without_a_digest(tmp_path: Path) -> None:
    data = container.DATA.read_text(encoding="utf-8")
    path = tmp_path / "container.toml"
    path.write_text(data.replace(load_container().image, "quay.io/pypa/manylinux_2_28_x86_64:latest"))

    with pytest.raises(DataError, match="digest"):
        load_toml(path, Container)
