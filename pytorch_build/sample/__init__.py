"""The embedded sample: miniature PyTorch projects as real git repositories, the same on every machine.

The templates keep upstream's build contract (files, environment variables, commands), so
that every stage treats the sample as it treats the real projects.

A commit's id depends on its files, author, dates and message only; all of them are fixed
here, and no configuration of the user's git is read. torch's pins name the commits of the
other projects, so torch comes last.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from core import files, process
from core.errors import UsageError
from pytorch_build.components import COMPONENTS

TEMPLATES = Path(__file__).parent / "templates"
BRANCH = "main"
NIGHTLY_BRANCH = "nightly"
TORCH_TAG = "v2.10.0a0"
STAMP = "digest"

_GENERATOR = 1  # part of the cache's digest: raise it when the same templates give other commits
_DATE = "1767225600 +0000"  # 2026-01-01 in UTC
_AUTHOR = "PyTorch sample"
_EMAIL = "sample@invalid"
# What a user's settings could change in a commit, said on every command line.
_SETTINGS = (
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "core.autocrlf=false",
    "core.fileMode=false",
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    f"core.hooksPath={os.devnull}",
)
# Fetches by commit and without blobs, as the projects' real hosts allow them.
_SERVED = ("uploadpack.allowAnySHA1InWant", "uploadpack.allowFilter")

# Components that have a template, but torch, whose repository is more than a tree of files.
_PLAIN_COMPONENTS = [name for name in COMPONENTS if name != "torch" and (TEMPLATES / name).is_dir()]
# In the order of generation: a repository comes after those whose commits it names.
REPOSITORIES = ("minivec", "miniblas", *_PLAIN_COMPONENTS, "torch")
# Repository -> its folders that are submodules -> the repositories that lie there.
_SUBMODULES: Mapping[str, Mapping[str, str]] = {
    "miniblas": {"third_party/minivec": "minivec"},
    "torch": {"third_party/miniblas": "miniblas"},
}


def ensure_repositories(folder: Path) -> Mapping[str, Path]:
    """Return the paths of the sample's repositories, and make them unless they are there and current.

    They are made beside the folder and renamed into place, so that an interrupted run leaves nothing that a
    later one would take for whole.

    Args:
        folder: What holds one bare repository a project, and nothing else.

    Returns:
        Repository name -> its path: the components that have a template, and torch's
        submodules. Each has a branch ``main``; torch has ``nightly`` and a tag besides.

    Raises:
        UsageError: The folder holds something else than the sample's repositories.
        ProcessError: git is not installed, or failed.
    """
    folder = folder.absolute()
    templates = {name: _read_templates(name) for name in REPOSITORIES}
    texts: dict[str, dict[str, str]] = {}
    for name, contents in templates.items():
        texts[name] = {path: content.decode() for path, content in contents.items()}
    digest = files.digest_of([_GENERATOR, texts])
    repositories = {name: folder / name for name in REPOSITORIES}
    if _is_current(folder, digest):
        return repositories

    lock = folder.with_name(f".{folder.name}.lock")
    with files.locked(lock, what="the sample's repositories"):
        # Another process may have made them meanwhile.
        if not _is_current(folder, digest):
            _refuse_foreign_files(folder)
            with files.replacement_folder(folder) as new_folder:
                _generate_repositories(new_folder, templates)
                files.write_text(new_folder / STAMP, _stamp(new_folder, digest))
    return repositories


def _read_templates(name: str) -> Mapping[str, bytes]:
    """Return a repository's templates: path in the repository -> content with line feeds.

    A leading ``dot_`` stands for ``.`` where the dotted file would steer this checkout's
    own git (``.gitignore``, ``.gitmodules``).
    """
    root = TEMPLATES / name
    contents: dict[str, bytes] = {}
    for path in root.rglob("*"):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        parts = [re.sub("^dot_", ".", part) for part in path.relative_to(root).parts]
        contents["/".join(parts)] = path.read_bytes().replace(b"\r\n", b"\n")
    return dict(sorted(contents.items()))


def _is_current(folder: Path, digest: str) -> bool:
    """Return whether a folder holds the repositories of these templates, and all their files."""
    try:
        stamp = (folder / STAMP).read_text(encoding="utf-8")
    except OSError:
        return False
    return stamp == _stamp(folder, digest)


def _stamp(folder: Path, digest: str) -> str:
    """Return a digest of the templates' digest and of the sizes of all files in the repositories."""
    sizes = {name: files.file_sizes(folder / name) for name in REPOSITORIES}
    return files.digest_of([digest, sizes])


def _refuse_foreign_files(folder: Path) -> None:
    """Fail where a folder to be replaced holds more than the sample's repositories."""
    if not folder.exists():
        return
    names = {path.name for path in folder.iterdir()}
    foreign_names = names.difference(REPOSITORIES, [STAMP])
    if foreign_names:
        raise UsageError(
            f"{folder} is not a folder of sample repositories: it holds {min(foreign_names)}.",
            hint="Name a folder of its own for them, or remove this one.",
        )


def _generate_repositories(
    folder: Path,
    templates: Mapping[str, Mapping[str, bytes]],
) -> None:
    """Write the templates of each project to a work tree, and make a bare repository of it."""
    work_trees = folder.with_name("trees")
    commits: dict[str, str] = {}
    for name in REPOSITORIES:
        contents = dict(templates[name])
        if name == "torch":
            contents.update(_pin_files(commits))
        work_tree = work_trees / name
        for path, content in contents.items():
            target = work_tree / path
            target.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            target.write_bytes(content)

        submodules: dict[str, str] = {}
        for submodule, project in _SUBMODULES.get(name, {}).items():
            submodules[submodule] = commits[project]
        commits[name] = _make_repository(folder / name, work_tree, submodules, has_nightly=name == "torch")


def _pin_files(commits: Mapping[str, str]) -> Mapping[str, bytes]:
    """Return the files of torch that name other projects' commits, by path, in upstream's two formats.

    ``related_commits`` has six fields a row: system, source, project, branch, commit, origin.
    """
    rows: list[str] = []
    for system in ("ubuntu", "centos"):
        for name in reversed(_PLAIN_COMPONENTS):
            component = COMPONENTS[name]
            if "torch" not in component.built_first:
                continue
            fields = (
                system,
                "pytorch",
                component.distribution,
                BRANCH,
                commits[name],
                f"sample:{name}",
            )
            rows.append("|".join(fields))
    related_commits = "".join(f"{row}\n" for row in rows)
    triton_pin = f"{commits['triton']}\n"
    return {
        "related_commits": related_commits.encode(),
        ".ci/docker/ci_commit_pins/triton.txt": triton_pin.encode(),
    }


def _make_repository(path: Path, work_tree: Path, submodules: Mapping[str, str], *, has_nightly: bool) -> str:
    """Make a bare repository of a tree of files, with submodules (folder -> commit); return its commit.

    With the branch of nightlies it has the tag, too. That branch's commit names the one that it was made of.
    """
    command = ["git", "init", "--quiet", "--bare", "--template=", "--object-format=sha1"]
    process.capture([*command, path], env=_fixed_environment())
    git = partial(_run_git, path, work_tree)
    git("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    for setting in _SERVED:
        git("config", setting, "true")

    git("add", "--all", "--force")
    for folder, submodule_commit in submodules.items():
        git("update-index", "--add", "--cacheinfo", f"160000,{submodule_commit},{folder}")
    git("commit", "--quiet", "--message", f"Sample of {path.name}")
    commit = git("rev-parse", "HEAD")
    if has_nightly:
        git("tag", "--annotate", "--message", f"Sample {TORCH_TAG}", TORCH_TAG)
        message = f"2026-01-01 nightly release ({commit})"
        release = git("commit-tree", "HEAD^{tree}", "-p", commit, "-m", message)
        git("update-ref", f"refs/heads/{NIGHTLY_BRANCH}", release)
    return commit


def _run_git(path: Path, work_tree: Path, *arguments: str) -> str:
    """Run git on a bare repository and the tree of files that it is made of; return what it prints."""
    command = ["git"]
    for setting in _SETTINGS:
        command += ["-c", setting]
    env = _fixed_environment() | {"GIT_DIR": str(path), "GIT_WORK_TREE": str(work_tree)}
    return process.capture([*command, *arguments], cwd=work_tree, env=env).stdout.strip()


def _fixed_environment() -> dict[str, str]:
    """Return git's environment variables with fixed author and dates, without the user's settings."""
    variables = process.inherited()
    for name in list(variables):
        if name.startswith("GIT_"):
            del variables[name]
    return {
        **variables,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": _AUTHOR,
        "GIT_AUTHOR_EMAIL": _EMAIL,
        "GIT_AUTHOR_DATE": _DATE,
        "GIT_COMMITTER_NAME": _AUTHOR,
        "GIT_COMMITTER_EMAIL": _EMAIL,
        "GIT_COMMITTER_DATE": _DATE,
        "LC_ALL": "C",
    }
