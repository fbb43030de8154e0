"""The embedded sample: miniature PyTorch projects as real git repositories, the same on every machine.

The templates keep upstream's build contract (files, environment variables, commands), so
that every stage treats the sample as it treats the real projects.

A commit's id depends on its files, author, dates and message only; all of them are fixed
here, and no configuration of the user's git is read. torch's pins name the commits of the
other projects, so torch comes last.
"""

import os
from collections.abc import Iterator, Mapping
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
    """Return the sample's repositories in a folder, made now unless these templates' ones are there.

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
    digest = _digest_templates(templates)
    repositories = {name: folder / name for name in REPOSITORIES}
    if _is_current(folder, digest):
        return repositories

    lock = folder.with_name(f".{folder.name}.lock")
    with files.locked(lock, what="the sample's repositories"):
        # Another process may have made them meanwhile.
        if not _is_current(folder, digest):
            _refuse_foreign_files(folder)
            with files.replaced(folder) as new_folder:
                _generate(new_folder, templates)
                files.write_text(new_folder / STAMP, _stamp(new_folder, digest))
    return repositories


def _read_templates(name: str) -> Mapping[str, bytes]:
    """Return a repository's templates: path in the repository -> content with line feeds.

    A leading ``dot_`` stands for ``.`` where the dotted file would steer this checkout's
    own git (``.gitignore``, ``.gitmodules``).
    """
    root = TEMPLATES / name
    contents: dict[str, bytes] = {}
    for path in _template_files(root):
        parts = map(_dotted, path.relative_to(root).parts)
        content = path.read_bytes()
        contents["/".join(parts)] = content.replace(b"\r\n", b"\n")
    return dict(sorted(contents.items()))


def _template_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
        for name in names:
            yield Path(folder, name)


def _dotted(part: str) -> str:
    if not part.startswith("dot_"):
        return part
    return f".{part.removeprefix('dot_')}"


def _digest_templates(templates: Mapping[str, Mapping[str, bytes]]) -> str:
    texts: dict[str, dict[str, str]] = {}
    for name, contents in templates.items():
        texts[name] = {path: content.decode() for path, content in contents.items()}
    return files.digest_of([_GENERATOR, texts])


def _is_current(folder: Path, digest: str) -> bool:
    try:
        stamp = (folder / STAMP).read_text(encoding="utf-8")
    except OSError:
        return False
    return stamp == _stamp(folder, digest)


def _stamp(folder: Path, digest: str) -> str:
    """Return what says that the repositories are those of the templates' digest, and have lost no file."""
    sizes = {name: files.file_sizes(folder / name) for name in REPOSITORIES}
    return files.digest_of([digest, sizes])


def _refuse_foreign_files(folder: Path) -> None:
    """Stop before a folder is replaced that holds more than the sample's repositories."""
    if not folder.exists():
        return
    names = {path.name for path in folder.iterdir()}
    foreign_names = names.difference(REPOSITORIES, [STAMP])
    if foreign_names:
        raise UsageError(
            f"{folder} is not a folder of sample repositories: it holds {min(foreign_names)}.",
            hint="Name a folder of its own for them, or remove this one.",
        )


def _generate(
    folder: Path,
    templates: Mapping[str, Mapping[str, bytes]],
) -> None:
    work_trees = folder.with_name("trees")
    commits: dict[str, str] = {}
    for name in REPOSITORIES:
        contents = dict(templates[name])
        if name == "torch":
            contents.update(_pins(commits))
        work_tree = work_trees / name
        for path, content in contents.items():
            target = work_tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

        submodules: dict[str, str] = {}
        for submodule, project in _SUBMODULES.get(name, {}).items():
            submodules[submodule] = commits[project]
        repository = _Repository(folder / name, work_tree)
        commits[name] = repository.commit(submodules)
        if name == "torch":
            repository.release_nightly(commits[name])


def _pins(commits: Mapping[str, str]) -> Mapping[str, bytes]:
    """Return torch's files that name other projects' commits, in upstream's two formats.

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


class _Repository:
    """A bare repository, and the tree of files that it is made of."""

    def __init__(self, path: Path, work_tree: Path) -> None:
        self._path = path
        self._work_tree = work_tree

    def commit(self, submodules: Mapping[str, str]) -> str:
        """Make the repository with submodules (folder -> commit); return the commit of its ``main``."""
        self._create()
        self._git("add", "--all", "--force")
        for folder, commit in submodules.items():
            self._git(
                "update-index",
                "--add",
                "--cacheinfo",
                f"160000,{commit},{folder}",
            )
        self._git(
            "commit",
            "--quiet",
            "--message",
            f"Sample of {self._path.name}",
        )
        return self._git("rev-parse", "HEAD")

    def _create(self) -> None:
        command = ["git", "init", "--quiet", "--bare", "--template=", "--object-format=sha1"]
        process.capture([*command, self._path], env=_fixed_environment())
        self._git("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
        for setting in _SERVED:
            self._git("config", setting, "true")

    def release_nightly(self, commit: str) -> None:
        """Add the tag and the nightly branch, whose commit names the one that it was made of."""
        self._git("tag", "--annotate", "--message", f"Sample {TORCH_TAG}", TORCH_TAG)
        message = f"2026-01-01 nightly release ({commit})"
        release = self._git("commit-tree", "HEAD^{tree}", "-p", commit, "-m", message)
        self._git("update-ref", f"refs/heads/{NIGHTLY_BRANCH}", release)

    def _git(self, *arguments: str) -> str:
        command = ["git"]
        for setting in _SETTINGS:
            command += ["-c", setting]
        variables = {
            "GIT_DIR": str(self._path),
            "GIT_WORK_TREE": str(self._work_tree),
        }
        completed = process.capture(
            [*command, *arguments],
            cwd=self._work_tree,
            env=_fixed_environment() | variables,
        )
        return completed.stdout.strip()


def _fixed_environment() -> dict[str, str]:
    """Return git's environment: who and when are fixed, the user's settings are out of reach."""
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
