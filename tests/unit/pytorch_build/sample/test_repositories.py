import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import process
from core.errors import ProcessError, UsageError
from pytorch_build import sample as samples
from pytorch_build.sample import REPOSITORIES, ensure_repositories

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return ensure_repositories(tmp_path_factory.mktemp("sample") / "repos")


def _git(repository: Path, *arguments: str) -> str:
    return process.capture(["git", "-C", repository, *arguments]).stdout.strip()


def _heads(made: Mapping[str, Path]) -> dict[str, str]:
    return {name: _git(path, "rev-parse", "main") for name, path in made.items()}


def test_nobodys_settings_change_a_commit(
    sample: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[user]\n\tname = Someone\n\temail = some@one\n[commit]\n\tgpgSign = true\n[tag]\n\tgpgSign = true\n"
        "[core]\n\tautocrlf = true\n[init]\n\tdefaultBranch = trunk\n[i18n]\n\tcommitEncoding = latin1\n"
    )
    ignore = tmp_path / "home" / ".config" / "git" / "ignore"
    ignore.parent.mkdir(parents=True)
    ignore.write_text("*.py\n")
    (ignore.parent / "attributes").write_text("* text eol=crlf\n")
    changes = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "home" / ".config"),
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_AUTHOR_NAME": "Someone",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00",
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_DEFAULT_HASH": "sha256",
        "TZ": "Asia/Tokyo",
        "LANG": "de_DE.UTF-8",
    }
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    previous = os.umask(0o077)
    try:
        made = ensure_repositories(tmp_path / "repos")
    finally:
        os.umask(previous)
    for name in changes:
        monkeypatch.delenv(name)
    assert _heads(made) == _heads(sample)
    refs = "for-each-ref", "--format=%(refname) %(objectname)"
    assert _git(made["torch"], *refs) == _git(sample["torch"], *refs)


def test_a_second_call_starts_no_process(sample: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "capture", lambda *_, **__: pytest.fail("a process was started"))
    assert ensure_repositories(sample["torch"].parent) == sample


def test_other_templates_give_other_repositories(
    tmp_path: Path, sample: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_repositories(tmp_path / "repos")
    read = samples._template_files
    monkeypatch.setattr(
        samples,
        "_template_files",
        lambda name: {**read(name), "version.txt": b"9.9\n"} if name == "audio" else read(name),
    )
    ensure_repositories(tmp_path / "repos")
    before, after = _heads(sample), _heads(made)
    assert {name for name in REPOSITORIES if before[name] != after[name]} == {"audio", "torch"}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["repos"]


@pytest.mark.parametrize("lost", ["torch/HEAD", samples.STAMP])
def test_what_is_half_there_is_made_again(tmp_path: Path, sample: Mapping[str, Path], lost: str) -> None:
    made = ensure_repositories(tmp_path / "repos")
    (tmp_path / "repos" / lost).unlink()
    assert _heads(ensure_repositories(tmp_path / "repos")) == _heads(sample)
    assert _git(made["torch"], "fsck", "--strict") == ""


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = process.capture

    def fails_at_vision(argv: list[str], **options: object) -> process.Completed:
        if "commit" in argv and "Sample of vision" in argv:
            raise ProcessError("git commit ended with status 128.")
        return run(argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "capture", fails_at_vision)
    with pytest.raises(ProcessError, match="status 128"):
        ensure_repositories(tmp_path / "repos")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    monkeypatch.undo()
    assert ensure_repositories(tmp_path / "repos")["torch"].is_dir()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        ensure_repositories(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
