"""A managed source tree, and the upstream repositories with nested submodules that it is checked out from.

Origins are addresses that a mirror leads to, so that a folder with repositories and trees can be copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytorch_build.lock.source_lock import LockedProject
from pytorch_build.sources.checkout import CheckoutOptions, SourceTree, checkout
from pytorch_build.sources.git import Origins
from tests.kit.repos import commit_files, run_git

HOST = "https://example.invalid/"
UPSTREAM_TAG = "THEROCK_UPSTREAM_DIFFBASE"
HIPIFY_TAG = "THEROCK_HIPIFY_DIFFBASE"
HIPIFY_SUBJECT = "DO NOT SUBMIT: HIPIFY"

# What upstream's script does: rewrites in place, in submodules too, and writes new files.
BUILD_AMD = """
import pathlib, sys
root = pathlib.Path(__file__).parents[2]
for path in [root / "kernel.cpp", root / "third_party/sub/code.cpp"]:
    if path.exists():
        path.write_text(path.read_text().replace("cuda", "hip"))
(root / "hip").mkdir(exist_ok=True)
(root / "hip/a.hip").write_text((root / "a.cu").read_text().replace("cuda", "hip"))
if (root / "fail").exists():
    sys.exit("no such kernel")
"""
TORCH_FILES = {
    "version.txt": "2.10.0a0\n",
    "kernel.cpp": "cuda();\n",
    "a.cu": "cuda();\ncuda();\n",
    ".gitignore": "build/\n",
    "tools/amd_build/build_amd.py": BUILD_AMD,
}


@dataclass(kw_only=True)
class CheckoutWorld:
    """Upstream repositories, a torch that is locked at a commit, and its managed tree."""

    root: Path
    locked: LockedProject = field(init=False)

    def __post_init__(self) -> None:
        commit = run_git(self.upstream, "rev-parse", "HEAD")
        self.locked = LockedProject(
            project="torch", origin=f"{HOST}torch", ref="main", commit=commit, base_version="2.10.0a0"
        )

    @property
    def upstream(self) -> Path:
        """Upstream's repository of torch."""
        return self.root / "torch"

    @property
    def tree(self) -> Path:
        """The managed tree."""
        return self.root / "src" / "torch"

    @property
    def submodule(self) -> Path:
        """The tree's submodule, which has one as well."""
        return self.tree / "third_party" / "sub"

    def checkout(
        self,
        *,
        hipify: bool = True,
        submodules: bool = True,
        depth: int = 1,
        force: bool = False,
        stash: bool = False,
    ) -> SourceTree:
        """Check the locked commit out."""
        options = CheckoutOptions(
            hipify=hipify,
            submodules=submodules,
            depth=depth,
            force=force,
            stash=stash,
            origins=Origins(mirrors={HOST: f"{self.root}/"}),
        )
        return checkout(self.locked, self.tree, options)

    def commit_upstream(self, texts: Mapping[str, str], *, removed: str | None = None) -> str:
        """Commit files to upstream's torch, and lock that commit; return it."""
        if removed is not None:
            run_git(self.upstream, "rm", "--quiet", "--force", removed)
        commit = commit_files(self.upstream, texts)
        self.lock(commit=commit)
        return commit

    def lock(self, **changes: str) -> None:
        """Change the locked project."""
        self.locked = self.locked.model_copy(update=changes)

    def commit_of(self, name: str, folder: Path | None = None) -> str:
        """Return the commit that a name stands for in the tree, or in a folder."""
        return run_git(folder or self.tree, "rev-parse", name)

    def stashes(self, folder: Path | None = None) -> list[str]:
        """Return the names of the stashes in the tree, or in a folder."""
        return run_git(folder or self.tree, "stash", "list").splitlines()

    def require_finished(self) -> None:
        """Require that the tree is as a first checkout leaves it."""
        status = run_git(self.tree, "status", "--porcelain", "--ignore-submodules=none")
        assert status == ""
        subjects = run_git(self.tree, "log", "--format=%s").splitlines()
        assert subjects == [HIPIFY_SUBJECT, "Upstream"]
        assert self.commit_of(f"{HIPIFY_TAG}^") == self.locked.commit
        assert (self.tree / "hip/a.hip").read_text() == "hip();\nhip();\n"
        assert (self.tree / "kernel.cpp").read_text() == "hip();\n"
        assert (self.submodule / "code.cpp").read_text() == "hip();\n"


def write_upstream(root: Path) -> CheckoutWorld:
    """Make the upstream repositories: torch with a submodule that has one as well."""
    commit_files(root / "inner", {"inner.h": "cuda\n"})
    commit_files(root / "sub", {"code.cpp": "cuda();\n"})
    run_git(root / "sub", "submodule", "--quiet", "add", "../inner", "inner")
    commit_files(root / "sub", {})
    commit_files(root / "torch", TORCH_FILES)
    run_git(root / "torch", "submodule", "--quiet", "add", "--name", "sub", "../sub", "third_party/sub")
    commit_files(root / "torch", {})
    return CheckoutWorld(root=root)
