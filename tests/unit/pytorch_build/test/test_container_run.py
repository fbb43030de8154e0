from itertools import pairwise
from pathlib import Path

from core.env.engines import Engine
from pytorch_build.build.container import ContainerSession
from pytorch_build.test import container_run
from pytorch_build.test.container_run import Devices, container_command, find_devices
from tests.kit.windows import not_on_windows

pytestmark = not_on_windows("containers with a GPU's devices run on Linux alone")

ROOT = Path("/home/me/checkout")


def session(
    *arguments: str, user: tuple[int, int] = (1000, 1001), machine_variables: frozenset[str] = frozenset()
) -> ContainerSession:
    """Return a session of a user, in whose environment variables are set."""
    return ContainerSession(
        name="test_torch",
        arguments=arguments,
        python="",
        root=ROOT,
        user=user,
        machine_variables=machine_variables,
    )


def command_for(
    engine: Engine,
    container_session: ContainerSession,
    *,
    paths: tuple[Path, ...] = (Path("/dev/kfd"), Path("/dev/dri")),
    groups: tuple[int, ...] = (),
) -> tuple[str, ...]:
    """Return the command line for a machine with these devices."""
    return container_command(
        engine, container_session, image=container_run.IMAGE, devices=Devices(paths=paths, groups=groups)
    )


def option_values(arguments: tuple[str, ...], option: str) -> list[str]:
    """Return the arguments behind an option."""
    values: list[str] = []
    for argument, next_argument in pairwise(arguments):
        if argument == option:
            values.append(next_argument)
    return values


def options_of_groups(arguments: tuple[str, ...]) -> list[str]:
    """Return the groups that a container gets."""
    return [argument for argument in arguments if argument.startswith("--group-add")]


def test_a_container_gets_devices_groups_and_memory_as_on_gpu_machines() -> None:
    arguments = command_for("docker", session("--gpu-family", "gfx950-dcgpu"), groups=(44, 110, 992))

    groups = [option.partition("=")[2] for option in options_of_groups(arguments)]
    assert arguments[:3] == ("docker", "run", "--rm")
    assert {"--device=/dev/kfd", "--device=/dev/dri", "--ipc=host"} <= set(arguments)
    assert groups == ["video", "render", "110", "44", "992"]
    assert arguments[arguments.index("bash") - 1] == container_run.IMAGE


def test_files_of_a_container_belong_to_the_user() -> None:
    arguments = command_for("docker", session(), paths=())

    assert "1000:1001" in arguments
    assert not options_of_groups(arguments)
    assert not {"--userns", "--device=/dev/kfd", "--device=/dev/dri"} & set(arguments)


def test_podman_keeps_the_users_groups() -> None:
    arguments = command_for("podman", session())

    # The engine takes no other group beside these.
    assert options_of_groups(arguments) == ["--group-add=keep-groups"]
    assert "1000:1001" in arguments
    assert "keep-id" in arguments


def test_podman_maps_no_user_for_root() -> None:
    assert "keep-id" not in command_for("podman", session(user=(0, 0)))


def test_a_user_whom_the_image_does_not_know_has_a_home_and_caches_that_stay() -> None:
    arguments = command_for("docker", session())

    home = "/tmp/home"  # noqa: S108 - the container's own
    assert dict(value.split("=") for value in option_values(arguments, "--env")) == {
        "HOME": home,
        "USER": "tests",
        "PIP_CACHE_DIR": f"{ROOT}/.cache/container/pip",
        "UV_CACHE_DIR": f"{ROOT}/.cache/container/uv",
    }
    assert f"mkdir -p {home}" in arguments[-1]


def test_absent_devices_are_not_passed_on(tmp_path: Path) -> None:
    assert find_devices((tmp_path / "kfd", tmp_path / "dri")) == Devices()


def test_present_devices_are_passed_on_with_their_groups(tmp_path: Path) -> None:
    kfd = tmp_path / "kfd"
    dri = tmp_path / "dri"
    kfd.touch()
    dri.mkdir()
    (dri / "renderD128").touch()
    (dri / "by-path").mkdir()

    assert find_devices((kfd, dri)) == Devices(paths=(kfd, dri), groups=(kfd.stat().st_gid,))


PASSED_VARIABLES = frozenset(
    {"AWS_SECRET_ACCESS_KEY", "HIP_VISIBLE_DEVICES", "https_proxy", "PIP_INDEX_URL", "GITHUB_RUN_ID"}
)
# Of this machine: its users, and files that do not exist inside.
LOCAL_VARIABLES = frozenset(
    {
        *("HOME", "LD_PRELOAD", "GITHUB_STEP_SUMMARY", "RUNNER_TEMP", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CA_BUNDLE", "PIP_CERT", "PIP_CACHE_DIR", "UV_CACHE_DIR"),
    }
)


def test_variables_are_passed_on_by_name_alone() -> None:
    arguments = command_for("docker", session(machine_variables=PASSED_VARIABLES | LOCAL_VARIABLES))

    # A value would be readable in the list of processes.
    names = [value for value in option_values(arguments, "--env") if "=" not in value]
    assert names == sorted(PASSED_VARIABLES)
