"""A virtual environment with packages of a run or of an index: what is installed, and from where.

Environments and installers stand aside: what they are asked for is noted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ci import install
from ci.install import ChosenPackages, devices
from core.cli.options import Common
from core.env.installer import Sources
from core.errors import MissingInputError, UsageError
from core.packages.candidates import Candidate
from core.run import RunOutputs
from core.run.records import FileRecord
from core.stores import Store
from tests.kit.front_doors import run_verb
from tests.kit.servers import served
from tests.kit.small_runs import GROUP, publish_wheel

DIGEST = "a" * 64


class Target:
    """The environment's Python."""

    tag = "cp312"
    series = "3.12"
    version = "3.12.1"
    prefix = Path("/env")
    executable = Path("/env/bin/python")
    scripts = Path("/env/bin")


@dataclass
class Environments:
    """The environments that were made, with their options, and what was installed."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    own_sources: list[Sources] = field(default_factory=list)
    other_sources: list[Sources | None] = field(default_factory=list)

    @property
    def request(self) -> Any:
        """The one request to install something."""
        (request,) = self.requests
        return request


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Environments:
    environments = Environments()
    of_index = Candidate(name="t", distribution="torch", version="2", sha256=DIGEST, url="/t")

    @contextmanager
    def environment(folder: Path, **options: Any) -> Iterator[Target]:
        environments.calls.append((folder.name, options))
        yield Target()

    def install_chosen(
        _target: Target,
        request: Any,
        _packages: ChosenPackages,
        our_sources: Sources,
        dependency_index: Sources | None,
    ) -> None:
        environments.requests.append(request)
        environments.own_sources.append(our_sources)
        environments.other_sources.append(dependency_index)

    def choose(request: Any, *_: Any) -> ChosenPackages:
        of_run = tuple(candidate for candidate in request.candidates if candidate.key)
        return ChosenPackages(our_files=of_run or (of_index,), other_packages=())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(install, "environment", environment)
    monkeypatch.setattr(install, "planned", lambda *_, **__: Target())
    monkeypatch.setattr(install, "install_chosen", install_chosen)
    monkeypatch.setattr(install, "choose", choose)
    monkeypatch.setattr(devices, "detect", lambda: ())
    return environments


def setup_venv(*arguments: object) -> int:
    return run_verb("ci", "setup-venv", ".venv", *arguments)


# --- Packages of a run -----------------------------------------------------------------------


@pytest.fixture
def run_options(common: Common) -> list[str]:
    """The options that name the run."""
    return ["--from-run-id", common.run_id, "--store", str(common.root / "out"), "--wait", "0"]


def write_page(
    store: Store,
    outputs: RunOutputs,
    wheel: FileRecord,
    group: str = GROUP,
) -> None:
    """Write the page of a group, which lists a wheel."""
    link = f'<a href="{wheel.name}">'
    store.put_bytes(f"{outputs.python_prefix(group)}/index.html", link.encode())


@pytest.fixture
def listed_torch(store: Store, outputs: RunOutputs, tmp_path: Path) -> FileRecord:
    """A torch that the run has, and that its page lists."""
    wheel = publish_wheel(store, outputs, tmp_path)
    write_page(store, outputs, wheel)
    return wheel


def test_pins_packages_of_a_run(
    listed_torch: FileRecord,
    run_options: Sequence[str],
    environments: Environments,
) -> None:
    assert setup_venv("--packages", "torch numpy", *run_options) == 0

    assert environments.calls == [(".venv", {"python": None, "clean": False})]
    assert environments.request.requirements == (f"torch=={listed_torch.version}", "numpy")
    assert environments.other_sources == [None]


@pytest.mark.usefixtures("listed_torch")
@pytest.mark.parametrize(("options", "allows"), [([], False), (["--pre"], True)], ids=["default", "--pre"])
def test_takes_unnamed_prereleases_where_the_user_allows_them(
    run_options: Sequence[str],
    environments: Environments,
    options: list[str],
    *,
    allows: bool,
) -> None:
    assert setup_venv("--packages", "torch", *run_options, *options) == 0

    assert environments.request.pre is allows


def test_a_group_names_the_family_of_its_packages(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    run_options: Sequence[str],
    environments: Environments,
) -> None:
    group = "gfx94X-dcgpu-asan"
    write_page(store, outputs, publish_wheel(store, outputs, tmp_path, group=group), group)

    assert setup_venv("--packages", "torch", *run_options) == 0

    assert environments.request.devices.family == "gfx94X-dcgpu"


def test_takes_only_wheels_for_the_environments_python(
    listed_torch: FileRecord,
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    run_options: Sequence[str],
    environments: Environments,
) -> None:
    publish_wheel(store, outputs, tmp_path, version="2.9.0", tag="cp311-cp311-linux_x86_64")

    assert setup_venv("--packages", "torch", *run_options) == 0

    assert [offer.version for offer in environments.request.candidates] == [listed_torch.version]


@pytest.mark.parametrize("option", ["--from-run-id", "--run-id"])
def test_names_the_pythons_that_a_runs_packages_are_for(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    option: str,
) -> None:
    publish_wheel(store, outputs, tmp_path, tag="cp311-cp311-linux_x86_64")

    exit_code = setup_venv("--packages", "torch", option, "17", "--store", tmp_path / "out")

    assert exit_code == MissingInputError.exit_code
    message = capfd.readouterr().err
    assert "Python 3.12" in message
    assert "cp311" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ("--packages", "torch", "--from-run-id", "18"),
        ("--packages", "torchvision", "--from-run-id", "17"),
        ("--packages", "torch", "--from-run-id", "17", "--artifact-group", "h"),
        # Its pages are not written.
        ("--packages", "torch", "--from-run-id", "17"),
    ],
    ids=["run", "package", "group", "page"],
)
def test_makes_nothing_where_the_run_lacks_something(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    environments: Environments,
    arguments: tuple[str, ...],
) -> None:
    publish_wheel(store, outputs, tmp_path)

    exit_code = setup_venv(*arguments, "--store", tmp_path / "out", "--wait", "0")

    assert exit_code == MissingInputError.exit_code
    assert environments.calls == []


@pytest.mark.usefixtures("listed_torch")
def test_a_dry_run_makes_nothing(
    run_options: Sequence[str],
    environments: Environments,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert setup_venv("--packages", "torch", *run_options, "--dry-run") == 0

    assert environments.calls == []
    assert ".venv" in capfd.readouterr().err


# --- Packages of an index --------------------------------------------------------------------


@pytest.fixture
def index_url(tmp_path: Path) -> Iterator[str]:
    """The address of an index with a torch."""
    page = tmp_path / "v2" / "simple" / "torch" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../torch-2.10.0-py3-none-any.whl#sha256={DIGEST}">torch</a>')
    with served(tmp_path) as url:
        yield f"{url}/v2"


def test_takes_packages_from_a_folder_of_an_index(index_url: str, environments: Environments) -> None:
    arguments = ("--index-url", index_url, "--index-subdir", "simple", "--pre")

    assert setup_venv("--packages", "torch", *arguments) == 0

    assert environments.request.requirements == ("torch==2.10.0",)
    assert environments.request.pre
    assert environments.own_sources == [Sources(index_url=f"{index_url}/simple/")]


def test_takes_other_packages_from_an_index_of_their_own(index_url: str, environments: Environments) -> None:
    arguments = ("--index-url", f"{index_url}/simple", "--deps-index-url", "https://deps/")

    assert setup_venv("--packages", "torch", *arguments) == 0

    assert environments.other_sources == [Sources(index_url="https://deps/")]


def test_makes_an_environment_anew_for_a_python(index_url: str, environments: Environments) -> None:
    arguments = ("--index-url", f"{index_url}/simple", "--python", "3.12", "--clean")

    assert setup_venv("--packages", "torch", *arguments) == 0

    assert environments.calls == [(".venv", {"python": "3.12", "clean": True})]


FLAT_PAGE = f"""
<a href="torch-2.10.0%2Brocm7.1-cp312-cp312-linux_x86_64.whl#sha256={DIGEST}">torch</a>
<a href="numpy-2-py3-none-any.whl">numpy</a><a href="../">up</a>"""


@pytest.mark.parametrize("option", ["--find-links-url", "--find-links"])
def test_takes_packages_from_a_flat_page(
    tmp_path: Path,
    environments: Environments,
    option: str,
) -> None:
    (tmp_path / "index.html").write_text(FLAT_PAGE)

    with served(tmp_path) as url:
        arguments = (option, f"{url}/index.html", "--gpu-family", "gfx94X-dcgpu")
        assert setup_venv("--packages", "torch", *arguments) == 0

    assert environments.request.requirements == ("torch==2.10.0+rocm7.1",)
    assert environments.request.devices.family == "gfx94X-dcgpu"
    assert environments.own_sources[0].find_links == (f"{url}/index.html",)


def test_refuses_a_flat_page_without_the_package(tmp_path: Path, environments: Environments) -> None:
    (tmp_path / "index.html").write_text("<a href='numpy-2-py3-none-any.whl'>")

    with served(tmp_path) as url:
        exit_code = setup_venv("--packages", "torch", "--find-links", f"{url}/index.html")

    assert exit_code == MissingInputError.exit_code
    assert environments.calls == []


def test_refuses_a_folder_that_does_not_exist(environments: Environments) -> None:
    exit_code = setup_venv("--packages", "torch", "--find-links", "/no/such/folder")

    assert exit_code == MissingInputError.exit_code
    assert environments.calls == []


# --- Later steps of a job, and mistakes ------------------------------------------------------


@pytest.fixture
def job_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job's files, which are named after their variables."""
    for name in ("GITHUB_PATH", "GITHUB_ENV"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


def test_says_how_to_activate_the_environment(
    index_url: str,
    job_files: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert setup_venv("--packages", "torch", "--index-url", f"{index_url}/simple") == 0

    assert "/env/bin/activate" in capfd.readouterr().err
    assert not (job_files / "GITHUB_PATH").exists()


def test_activates_the_environment_for_later_steps_when_asked(index_url: str, job_files: Path) -> None:
    arguments = ("--index-url", f"{index_url}/simple", "--activate-in-future-github-actions-steps")

    assert setup_venv("--packages", "torch", *arguments) == 0

    assert (job_files / "GITHUB_PATH").read_text() == "/env/bin\n"
    assert "VIRTUAL_ENV<<" in (job_files / "GITHUB_ENV").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--packages", "torch"),
        ("--from-run-id", "17"),
        ("--packages", "torch", "--from-run-id", "17", "--index-url", "https://x"),
        ("--packages", "torch", "--index-name", "nightly-v2"),
        ("--packages", "torch", "--index-name", "nightl", "--index-subdir", "gfx94X-dcgpu"),
        ("--packages", "=", "--from-run-id", "17"),
    ],
    ids=["no source", "no packages", "two sources", "no folder", "unknown index", "no requirement"],
)
def test_refuses_options_that_do_not_fit_together(
    arguments: tuple[str, ...], environments: Environments
) -> None:
    assert setup_venv(*arguments) == UsageError.exit_code

    assert environments.calls == []


def test_an_environment_has_a_folder(environments: Environments, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_verb("ci", "setup-venv", "--packages", "torch", "--run-id=17") == UsageError.exit_code

    assert "--download DIR" in capfd.readouterr().err
    assert environments.calls == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--download=wheels", "--index-url=https://x"], "--index-url has no effect with"),
        (["--download=wheels", "--clean"], "--clean has no effect with"),
        (["--download=wheels", ".venv"], "VENV has no effect with"),
        ([".venv", "--packages=torch", "--with-dependencies"], "--with-dependencies has no effect without"),
    ],
)
def test_refuses_what_has_no_effect_on_files_or_an_environment(
    arguments: list[str],
    name: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("ci", "setup-venv", "--run-id=17", *arguments) == UsageError.exit_code

    assert f"{name} --download" in capfd.readouterr().err
