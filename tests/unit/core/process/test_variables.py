import ast
import os
from collections.abc import Callable

import pytest

from core import process
from core.environment import allowed
from tests.kit.processes import python
from tests.kit.windows import ON_WINDOWS

processes = pytest.mark.processes

# Rights of a job, and settings that lead a program elsewhere: nothing of upstream's code gets them.
WITHHELD = (
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_RUNTIME_TOKEN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "CI",
    "CMAKE_API_KEY",
    "GITHUB_ENV",
    "GITHUB_PATH",
    "GITHUB_TOKEN",
    "GIT_ASKPASS",
    "INVENTED",
    "LD_PRELOAD",
    "NOTIFY_SLACK_WEBHOOK",
    "PIP_INDEX_URL",
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTORCH_BUILD_TOKEN",
    "ROCM_WEBHOOK_URL",
    "SSH_AUTH_SOCK",
    "TORCH_AUTH",
    "USE_PASSWORD",
    "UV_INDEX_URL",
)


def test_a_childs_environment_is_a_changed_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "1")
    before = dict(os.environ)  # noqa: TID251 - what must not change

    environment = process.inherited(REMOVED=None, NEVER_SET=None, ADDED="2")

    assert environment["KEPT"] == "1"
    assert environment["ADDED"] == "2"
    assert environment.keys().isdisjoint({"REMOVED", "NEVER_SET"})
    assert dict(os.environ) == before  # noqa: TID251


def variables_of_a_child() -> dict[str, str]:
    """Return the variables that a child has by default."""
    output = process.capture(python("import os; print(dict(os.environ))")).stdout
    variables: dict[str, str] = ast.literal_eval(output)
    return variables


@processes
def test_a_child_gets_no_right_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WITHHELD:
        monkeypatch.setenv(name, "of-the-job")

    assert "of-the-job" not in variables_of_a_child().values()


@processes
def test_a_child_gets_the_settings_of_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"HOME": "/h", "USE_ROCM": "1", "CMAKE_ARGS": "-DX", "LC_ALL": "C", "HSA_XNACK": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    assert settings.items() <= variables_of_a_child().items()


def name_here(name: str) -> str:
    """Return a variable's name as the platform keeps it: Windows knows no lower letters there."""
    return name.upper() if ON_WINDOWS else name


@processes
def test_a_child_gets_proxies_without_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:word@p:1")
    monkeypatch.setenv("HTTPS_PROXY", "me:word@p:1")

    proxies = {name_here("http_proxy"): "http://p:1", "HTTPS_PROXY": "p:1"}
    assert proxies.items() <= variables_of_a_child().items()


@pytest.mark.parametrize("variables_of", [process.inherited, process.handed_on])
@pytest.mark.parametrize(
    ("no_proxy", "addresses"),
    [(None, "localhost,127.0.0.1,::1"), ("a,b", "a,b,localhost,127.0.0.1,::1"), ("*", "*")],
    ids=["none", "some", "all"],
)
def test_a_child_asks_this_machine_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
    variables_of: Callable[[], dict[str, str]],
    no_proxy: str | None,
    addresses: str,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:1")
    if no_proxy is not None:
        monkeypatch.setenv("no_proxy", no_proxy)

    assert variables_of()[name_here("no_proxy")] == addresses


def test_a_childs_variables_stay_where_there_is_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "a,b")

    assert process.inherited()["NO_PROXY"] == "a,b"
    assert "no_proxy" not in process.inherited()


def test_a_compiler_caches_server_gets_the_rights_of_aws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WITHHELD:
        monkeypatch.setenv(name, "of-the-job")

    server_variables = allowed(process.inherited(), program="compiler cache")

    rights = {name for name in WITHHELD if name in server_variables}
    assert rights == {name for name in WITHHELD if name.startswith("AWS_")}


# Programs


def test_upstreams_code_sees_the_variables_of_builds_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("MY_OWN_VARIABLE", "1")

    variables = process.handed_on()

    assert variables["CFLAGS"] == "-O1"
    assert variables["HTTPS_PROXY"] == "http://proxy:3128"
    assert "MY_OWN_VARIABLE" not in variables
    assert "secret" not in variables.values()


def test_upstreams_code_sees_what_a_stage_sets_for_it() -> None:
    assert process.handed_on(SMOKE_GPU="gfx942")["SMOKE_GPU"] == "gfx942"
