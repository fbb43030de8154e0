"""The embedded sample: miniature PyTorch projects as real git repositories, the same on every machine.

The templates keep upstream's build contract (files, environment variables, commands), so
that every stage treats the sample as it treats the real projects.

A commit's id depends on its files, author, dates and message only; all of them are fixed
here, and no configuration of the user's git is read. torch's pins name the commits of the
other projects, so torch comes last.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """How one repository is made.

    Attributes:
        submodules: Folder in this repository -> the sample's repository that lies there.
        nightly: Whether it has a nightly branch and a tag beside ``main``.
        pins: Whether its tree names the commits of the other projects.
    """

    submodules: Mapping[str, str]
    nightly: bool = False
    pins: bool = False


# Components that have a template, but torch, whose repository is more than a tree of files.
_PLAIN_COMPONENTS = tuple(name for name in COMPONENTS if name != "torch" and (TEMPLATES / name).is_dir())

# In the order of generation: a repository comes after those whose commits it names.
_RECIPES: Mapping[str, _Recipe] = {
    "minivec": _Recipe(submodules={}),
    "miniblas": _Recipe(submodules={"third_party/minivec": "minivec"}),
    **{name: _Recipe(submodules={}) for name in _PLAIN_COMPONENTS},
    "torch": _Recipe(submodules={"third_party/miniblas": "miniblas"}, nightly=True, pins=True),
}
REPOSITORIES: tuple[str, ...] = tuple(_RECIPES)


def ensure_repositories(dest: Path) -> Mapping[str, Path]:
    """Make the sample's repositories in `dest`, unless these templates' ones are there.

    They are made beside `dest` and renamed into place, so that an interrupted run leaves
    nothing that a later one would take for whole.

    Args:
        dest: Folder that holds one bare repository a project, and nothing else.

    Returns:
        Repository name -> its path: the components that have a template, and torch's
        submodules. Each has a branch ``main``; torch has ``nightly`` and a tag besides.

    Raises:
        UsageError: `dest` holds something else than the sample's repositories.
        ProcessError: git is not installed, or failed.
    """
    dest = dest.absolute()
    digest = _digest(templates := {name: _template_files(name) for name in REPOSITORIES})
    repositories = {name: dest / name for name in REPOSITORIES}
    if _is_current(dest, digest):
        return repositories
    with files.locked(dest.parent / f".{dest.name}.lock", what="the sample's repositories"):
        if not _is_current(dest, digest):
            _refuse_foreign(dest)
            with files.replaced(dest) as made:
                _generate(made, templates)
                files.write_text(made / STAMP, _stamp(made, digest))
    return repositories


def _template_files(name: str) -> Mapping[str, bytes]:
    """Read a repository's templates: path in the repository -> content with line feeds.

    A leading ``dot_`` stands for ``.`` where the dotted file would steer this checkout's
    own git (``.gitignore``, ``.gitmodules``).
    """
    root = TEMPLATES / name
    found: dict[str, bytes] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [entry for entry in folders if entry != "__pycache__"]
        inside = Path(folder).relative_to(root).parts
        for entry in names:
            with open(f"{folder}/{entry}", "rb") as stream:  # noqa: PTH123 - each call reads them all: speed
                data = stream.read()
            found["/".join(_dotted(part) for part in (*inside, entry))] = data.replace(b"\r\n", b"\n")
    return dict(sorted(found.items()))


def _dotted(part: str) -> str:
    return "." + part.removeprefix("dot_") if part.startswith("dot_") else part


def _digest(templates: Mapping[str, Mapping[str, bytes]]) -> str:
    contents = {
        name: {path: data.decode() for path, data in tree.items()} for name, tree in templates.items()
    }
    return files.digest_of([_GENERATOR, contents])


def _is_current(dest: Path, digest: str) -> bool:
    try:
        stamped = (dest / STAMP).read_text(encoding="utf-8")
    except OSError:
        return False
    return stamped == _stamp(dest, digest)


def _stamp(dest: Path, digest: str) -> str:
    """Return what says that the repositories are those of the templates' digest, and have lost no file."""
    sizes = {name: files.file_sizes(dest / name) for name in REPOSITORIES}
    return files.digest_of([digest, sizes])


def _refuse_foreign(dest: Path) -> None:
    """Stop before a folder is replaced that holds more than the sample's repositories."""
    known = {*REPOSITORIES, STAMP}
    foreign = sorted(path.name for path in dest.iterdir() if path.name not in known) if dest.exists() else []
    if foreign:
        raise UsageError(
            f"{dest} is not a folder of sample repositories: it holds {foreign[0]}.",
            hint="Name a folder of its own for them, or remove this one.",
        )


def _generate(made: Path, templates: Mapping[str, Mapping[str, bytes]]) -> None:
    trees = made.with_name("trees")
    commits: dict[str, str] = {}
    for name, recipe in _RECIPES.items():
        tree = dict(templates[name])
        if recipe.pins:
            tree |= _pins(commits)
        work_tree = trees / name
        for path, data in tree.items():
            target = work_tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        commits[name] = _commit(made / name, work_tree, recipe, commits)


def _pins(commits: Mapping[str, str]) -> Mapping[str, bytes]:
    """Write torch's files that name other projects' commits, in upstream's two formats.

    ``related_commits`` has six fields a row: system, source, project, branch, commit, origin.
    """
    related = [name for name in reversed(_PLAIN_COMPONENTS) if "torch" in COMPONENTS[name].built_first]
    rows: list[str] = []
    for system in ("ubuntu", "centos"):
        for name in related:
            distribution = COMPONENTS[name].distribution
            rows.append(f"{system}|pytorch|{distribution}|{BRANCH}|{commits[name]}|sample:{name}\n")
    return {
        "related_commits": "".join(rows).encode(),
        ".ci/docker/ci_commit_pins/triton.txt": f"{commits['triton']}\n".encode(),
    }


def _commit(repository: Path, work_tree: Path, recipe: _Recipe, commits: Mapping[str, str]) -> str:
    """Make one bare repository of one tree of files; give the commit of its ``main``."""
    env = _environment(repository, work_tree)

    def git(*arguments: str) -> str:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        return process.capture(["git", *settings, *arguments], cwd=work_tree, env=env).stdout.strip()

    process.capture(
        ["git", "init", "--quiet", "--bare", "--template=", "--object-format=sha1", str(repository)],
        env={name: value for name, value in env.items() if name not in {"GIT_DIR", "GIT_WORK_TREE"}},
    )
    git("symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    for setting in _SERVED:
        git("config", setting, "true")
    git("add", "--all", "--force")
    for path, name in recipe.submodules.items():
        git("update-index", "--add", "--cacheinfo", f"160000,{commits[name]},{path}")
    git("commit", "--quiet", "--message", f"Sample of {repository.name}")
    commit = git("rev-parse", "HEAD")
    if recipe.nightly:
        git("tag", "--annotate", "--message", f"Sample {TORCH_TAG}", TORCH_TAG)
        release = git(
            "commit-tree", "HEAD^{tree}", "-p", commit, "-m", f"2026-01-01 nightly release ({commit})"
        )
        git("update-ref", f"refs/heads/{NIGHTLY_BRANCH}", release)
    return commit


def _environment(repository: Path, work_tree: Path) -> dict[str, str]:
    """Return git's environment: who and when are fixed, the user's settings are out of reach."""
    kept = {name: value for name, value in process.inherited().items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_DIR": str(repository),
        "GIT_WORK_TREE": str(work_tree),
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
