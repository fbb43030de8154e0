import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from core import process
from core.archive import Member
from core.data import use_own
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from tests.kit import isolation

Git = Callable[..., str]
Write = Callable[[Path, Mapping[str, str]], None]
Commit = Callable[[Path, Mapping[str, str]], str]
MakeWheel = Callable[..., Path]

# a busy machine is no fault of the code
settings.register_profile(
    "any-machine", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
# --hypothesis-profile=nightly: as many examples as hypothesis tries by itself
settings.register_profile("nightly", settings.get_profile("any-machine"), max_examples=100)
# --hypothesis-profile=few: for one Python more, when another one has seen many examples
settings.register_profile("few", settings.get_profile("any-machine"), max_examples=10)
# for mutants: a failure is all that is to be known
settings.register_profile("mutants", settings.get_profile("few"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("any-machine")

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Take the user's configuration out of reach, before a test or a worker process can read it."""
    if isolation.ISOLATED in os.environ:
        return  # A worker process inherits what its parent has isolated.
    home = tempfile.TemporaryDirectory(prefix="tests-home-")
    config.add_cleanup(home.cleanup)
    isolation.isolate(os.environ, Path(home.name))


AUTHOR = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "author",
    "GIT_AUTHOR_EMAIL": "author@invalid",
    "GIT_COMMITTER_NAME": "author",
    "GIT_COMMITTER_EMAIL": "author@invalid",
}


@pytest.fixture(autouse=True)
def no_file_of_ones_own() -> Iterator[None]:
    """Leave no user's file in use for the next test."""
    yield
    use_own(None)


@pytest.fixture(scope="session", name="git")
def git_fixture() -> Git:
    """Run git in a folder, as an author of upstream sources would, for what it prints."""

    def git(folder: Path, *arguments: str | Path) -> str:
        settings = ("-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")
        said = process.capture(["git", *settings, *arguments], cwd=folder, env=process.inherited(**AUTHOR))
        return said.stdout.strip()

    return git


@pytest.fixture(scope="session")
def write_files() -> Write:
    """Write files, path -> text, under a folder."""

    def write(folder: Path, texts: Mapping[str, str]) -> None:
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    return write


@pytest.fixture(scope="session")
def commit_files(git: Git, write_files: Write) -> Commit:
    """Commit files to the repository in a folder, making it first where it is not there."""

    def commit(folder: Path, texts: Mapping[str, str]) -> str:
        if not (folder / ".git").exists():
            folder.mkdir(parents=True, exist_ok=True)
            git(folder, "init", "--quiet")
        write_files(folder, texts)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--allow-empty", "--message", "Upstream")
        return git(folder, "rev-parse", "HEAD")

    return commit


@pytest.fixture(scope="session")
def make_wheel() -> MakeWheel:
    """Write a small wheel of one module: folder, name, version and what else it says of itself."""

    def make(
        folder: Path,
        name: str = "torch",
        version: str = "2.10.0+rocm7.1",
        *,
        tag: str = "py3-none-any",
        content: str = "",
        fields: Sequence[tuple[str, str]] = (),
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        module = Member(
            name=f"{name.replace('-', '_')}.py", source=f"VERSION = {version!r}\n{content}".encode()
        )
        metadata = metadata_text([("Name", name), ("Version", version), *fields])
        spec = WheelSpec(distribution=name, version=version, tag=tag, metadata=metadata)
        return write_wheel(folder, spec, [module]).path

    return make
