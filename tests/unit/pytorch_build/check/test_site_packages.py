from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from core.data import use_user_file
from pytorch_build.check import Finding, WheelView, site_packages
from pytorch_build.check.policy import Policy, load_policy
from pytorch_build.check.run import check_wheel
from tests.kit.findings import errors_among, members, messages
from tests.kit.views import judged_by, wheel_view
from tests.kit.wheels import write_wheel

DEMO = "demo-1.0-py3-none-any.whl"
TORCH = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"


def demo_view(*members: str, entry_points: str = "", filename: str = DEMO) -> WheelView:
    """Return a wheel of somebody else's, with these members besides its package."""
    files = {"demo/__init__.py": 1, **dict.fromkeys(members, 1)}
    return wheel_view(filename, files=files, entry_points=entry_points)


def torch_view(*members: str, requires: Sequence[str] = (), entry_points: str = "") -> WheelView:
    """Return a torch wheel, with these members besides its package."""
    files = {"torch/__init__.py": 1, **dict.fromkeys(members, 1)}
    return wheel_view(TORCH, files=files, requires=requires, entry_points=entry_points)


def check(view: WheelView, policy: Policy | None = None) -> list[Finding]:
    """Return what is found in what a wheel brings."""
    return [*site_packages.check(judged_by(view, policy or load_policy()))]


# Any wheel


@pytest.mark.parametrize(
    "member",
    [
        "evil.pth",
        "sitecustomize.py",
        "usercustomize/__init__.py",
        "sitecustomize.cpython-312-x86_64-linux-gnu.so",
        "demo-1.0.data/purelib/evil.pth",
        "demo-1.0.data/data/lib/python3.12/site-packages/evil.pth",
        "json/__init__.py",
        "typing.py",
        "pip/__init__.py",
        "setuptools/evil.py",
        "pkg_resources/__init__.py",
        "wheel/__init__.py",
        "uv/__init__.py",
        "demo-1.0.data/scripts/pip",
        "demo-1.0.data/scripts/pip3.12",
        "demo-1.0.data/scripts/python3",
        "demo-1.0.data/data/bin/uv",
        "demo-1.0.data/data/Scripts/pip.exe",
    ],
)
def test_refuses_what_takes_over_an_environment(member: str) -> None:
    errors = errors_among(check(demo_view(member)))

    assert errors != []
    assert set(members(errors)) == {member}


@pytest.mark.parametrize("name", ["pip", "pip3", "pip3.12", "uv", "uvx", "wheel", "python", "easy_install"])
@pytest.mark.parametrize("group", ["console_scripts", "gui_scripts"])
def test_refuses_a_script_with_the_name_of_an_installer(name: str, group: str) -> None:
    (finding,) = check(demo_view(entry_points=f"[{group}]\n{name} = demo:main\n"))

    assert finding.severity == "error"
    assert name in finding.message


@pytest.mark.parametrize(
    ("filename", "member"),
    [
        ("setuptools-84.2.1-py3-none-any.whl", "distutils-precedence.pth"),
        ("setuptools-84.2.1-py3-none-any.whl", "_distutils_hack/__init__.py"),
        ("setuptools-84.2.1-py3-none-any.whl", "pkg_resources/__init__.py"),
        ("coverage-7.17.5-cp312-cp312-linux_x86_64.whl", "a1_coverage.pth"),
        ("pip-26.3-py3-none-any.whl", "pip/__init__.py"),
        ("uv-0.13.9-py3-none-linux_x86_64.whl", "uv-0.13.9.data/scripts/uv"),
        ("standard_telnetlib-3.13.0-py3-none-any.whl", "telnetlib/__init__.py"),
        (DEMO, "demo/pip/__init__.py"),
        (DEMO, "demo/evil.pth"),
        (DEMO, "json.md"),
        (DEMO, "demo-1.0.data/scripts/pipeline"),
        (DEMO, "demo-1.0.data/data/share/man/man1/pip.1"),
    ],
)
def test_accepts_what_belongs_to_a_distribution(filename: str, member: str) -> None:
    assert check(demo_view(member, filename=filename)) == []


def test_warns_of_a_backport_alone() -> None:
    view = wheel_view("dataclasses-0.8-py3-none-any.whl", files={"dataclasses.py": 1})

    (finding,) = check(view)

    assert finding.severity == "warning"


@pytest.mark.parametrize("folder", ["test", "tests", "docs", "examples"])
def test_warns_of_a_folder_name_that_everybody_uses(folder: str) -> None:
    (finding,) = check(demo_view(f"{folder}/__init__.py"))

    assert finding.severity == "warning"
    assert folder in finding.message


def test_lets_a_policy_name_a_file_that_python_reads_at_its_start() -> None:
    policy = Policy(startup_files={"demo": ("demo.pth",)})

    assert check(demo_view("demo.pth"), policy) == []


# Wheels of ours


@pytest.mark.parametrize(
    ("view", "key", "name"),
    [
        pytest.param(torch_view("numpy/__init__.py"), "top_level", "numpy", id="module"),
        pytest.param(torch_view("tests/test_torch.py"), "top_level", "tests", id="tests"),
        pytest.param(torch_view("notes.txt"), "top_level", "notes.txt", id="file"),
        pytest.param(torch_view("torch-2.data/scripts/tool"), "programs", "tool", id="program"),
        pytest.param(
            torch_view(entry_points="[console_scripts]\ntool = torch:main\n"), "programs", "tool", id="script"
        ),
        pytest.param(
            torch_view(entry_points="[pytest11]\ntool = torch\n"), "entry_points", "pytest11:tool", id="entry"
        ),
        pytest.param(torch_view(requires=["EvilPkg>1"]), "requirements", "evilpkg", id="requirement"),
        pytest.param(torch_view("torch-2.data/data/etc/x"), "data_files", "etc/x", id="data"),
        pytest.param(torch_view("torch-2.data/headers/x.h"), "data_files", "include/x.h", id="header"),
    ],
)
def test_holds_a_wheel_of_ours_to_what_its_distribution_brings(view: WheelView, key: str, name: str) -> None:
    (finding,) = check(view)

    assert finding.severity == "error"
    # The message says how to allow it, in both places.
    assert f'allowed.torch.{key} = ["{name}"]' in finding.message
    assert "--policy" in finding.message
    assert "pytorch-build.toml" in finding.message


def test_accepts_what_upstreams_torch_brings() -> None:
    entry_points = """[console_scripts]
torchrun = torch.distributed.run:main
torchfrtrace = torch.distributed.flight_recorder.fr_trace:main

[torchrun.logs_specs]
default = torch.distributed.elastic.multiprocessing:DefaultLogsSpecs
"""
    requires = ["sympy>=1.13.3", "rocm[libraries]==7.1", "amd-torch-device-gfx942; extra == 'device-gfx942'"]
    view = torch_view(
        "torchgen/__init__.py", "functorch/__init__.py", requires=requires, entry_points=entry_points
    )

    assert check(view) == []


@pytest.mark.parametrize(
    ("filename", "members"),
    [
        ("apex-1.10-cp312-cp312-linux_x86_64.whl", ["amp_C.so", "apex/__init__.py"]),
        ("triton-3.6-cp312-cp312-linux_x86_64.whl", ["triton/__init__.py"]),
        ("rocm_sdk_core-7.1-py3-none-linux_x86_64.whl", ["_rocm_sdk_core/lib/x", "rocm_sdk_core/_cli.py"]),
        ("rocm_sdk_libraries_gfx94x_dcgpu-7.1-py3-none-any.whl", ["_rocm_sdk_libraries_gfx94X_dcgpu/lib/x"]),
        ("rocm_sdk_device_gfx942-7.1-py3-none-any.whl", ["_rocm_sdk_libraries/lib/x"]),
        ("amd_torch_device_gfx942-2.10-cp312-cp312-linux_x86_64.whl", ["torch/.kpack/x"]),
    ],
)
def test_accepts_the_layout_of_each_distribution(filename: str, members: Sequence[str]) -> None:
    assert check(wheel_view(filename, files=dict.fromkeys(members, 1))) == []


# Users' additions

MORE_TOP_LEVEL: Mapping[str, str] = {
    "policy": 'allowed.torch.top_level = ["torchextra"]\n',
    "user file": '[checks.allowed.torch]\ntop_level = ["torchextra"]\n',
}


def test_lets_a_users_policy_add_a_top_level_name(tmp_path: Path) -> None:
    policy_file = tmp_path / "mine.toml"
    policy_file.write_text(MORE_TOP_LEVEL["policy"])

    assert check(torch_view("torchextra/__init__.py"), load_policy(policy_file)) == []
    assert check(torch_view("numpy/__init__.py"), load_policy(policy_file)) != []


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """Return the file of a user that adds a top-level name, in use."""
    file = tmp_path / "pytorch-build.toml"
    file.write_text(MORE_TOP_LEVEL["user file"])
    use_user_file(file)
    return file


@pytest.mark.usefixtures("user_file")
def test_lets_the_users_file_add_a_top_level_name() -> None:
    assert check(torch_view("torchextra/__init__.py")) == []
    assert check(torch_view("numpy/__init__.py")) != []


def test_holds_a_component_of_a_user_to_what_its_policy_says() -> None:
    policy = Policy.model_validate({"allowed": {"demo": {"top_level": ["demo"]}}})

    (finding,) = check(demo_view("other/__init__.py"), policy)

    assert "allowed.demo.top_level" in finding.message


# One written wheel with everything


def test_refuses_a_wheel_with_a_valid_record_that_brings_what_it_should_not(tmp_path: Path) -> None:
    data = "torch-2.10.0+rocm7.1.data"
    intruders = [
        "sitecustomize.py",
        "evil.pth",
        "numpy/__init__.py",
        "pip/__init__.py",
        f"{data}/scripts/pip",
    ]
    twins = ["torch/a.py", "torch/A.py"]
    wheel = write_wheel(
        tmp_path,
        tag="cp312-cp312-linux_x86_64",
        files=dict.fromkeys(["torch/__init__.py", "tests/test_a.py", *intruders, *twins], b""),
        requires=["evilpkg"],
    )

    errors = errors_among(check_wheel(wheel))

    assert {*intruders, "tests/test_a.py", "torch/A.py"} <= set(members(errors))
    assert "evilpkg" in " ".join(messages(errors))
