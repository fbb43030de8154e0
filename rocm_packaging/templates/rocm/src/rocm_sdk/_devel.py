"""Expands the development tree beside the packages it belongs to, and keeps it up to date.

The devel wheel installs the files that only developers need, and carries a tar with what no
wheel can hold: symbolic links. Expanded, it becomes one ROCm tree: those files, the tar's links,
and hard links to every file of the installed core and libraries packages. Each path is added
to the wheel's RECORD before it appears, so that an uninstall after an interrupted expansion
leaves nothing behind either. Device packages lie over the
libraries and say in ``.devel_links/{target}.json`` which links they bring; those are in their
own RECORD too, so that they go with them.
"""

import csv
import importlib.util
import io
import json
import os
import posixpath
import shutil
import sys
import tarfile
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from . import _dist_info, _gpus

_TARS = ("_devel.tar", "_devel.tar.xz")
_STATE = ".rocm_sdk_devel.json"
_DEVICE_LINKS = ".devel_links"


def get_devel_root(force=False):
    """The development tree, expanded if need be.

    Args:
        force: Compare every link, even if nothing seems to have changed.

    Raises:
        ModuleNotFoundError: The devel package is not installed.
        RuntimeError: Its archive or its RECORD is damaged, or the folder cannot be written.
    """
    devel = _Devel()
    if force or not devel.is_current():
        try:
            devel.bring_up_to_date(force=force)
        except PermissionError as problem:
            raise RuntimeError(
                f"{problem.filename or devel.root} cannot be written; "
                "run `rocm-sdk init` once as a user who may"
            ) from problem
    return devel.root


class _Devel:
    def __init__(self):
        entry = _dist_info.ALL_PACKAGES["devel"]
        spec = importlib.util.find_spec(entry.get_pure_py_package_name())
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{entry.get_dist_package_name()} is not installed")
        self._real_folders = set()
        self.package = Path(spec.origin).absolute().parent
        self.site = self.package.parent
        self.root = self.site / entry.get_py_package_name()

    @property
    def tar(self):
        return next((self.package / name for name in _TARS if (self.package / name).exists()), None)

    @property
    def record(self):
        return self.record_of(_dist_info.ALL_PACKAGES["devel"].get_dist_package_name())

    def record_of(self, package):
        name = package.replace("-", "_")
        found = sorted(self.site.glob(f"{name}-*.dist-info/RECORD"))
        if len(found) != 1:
            raise RuntimeError(f"{self.site} holds {len(found)} RECORD files of {name}, not one")
        return found[0]

    def sources(self):
        """Installed packages whose files belong into the tree: name -> folder."""
        found = {}
        for name in ("core", *(["libraries"] if _dist_info.has_libraries() else [])):
            package = _dist_info.ALL_PACKAGES[name].get_py_package_name()
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.origin:
                found[package] = Path(spec.origin).absolute().parent
        return found

    def fingerprint(self):
        """What the links follow from. It changes when a package is installed, removed or replaced."""
        marks = {}
        for package, folder in self.sources().items():
            # Installers write this file anew; its times tell one installation from the next.
            status = (folder / "__init__.py").stat()
            marks[package] = [str(folder), status.st_ino, status.st_mtime_ns]
            for path in sorted((folder / _DEVICE_LINKS).glob("*.json")):
                status = path.stat()
                marks[f"{package}:{path.stem}"] = [str(path), status.st_ino, status.st_mtime_ns]
        return marks

    def devices(self):
        """Links that installed device packages bring: target -> (version, path in the tree -> file)."""
        found = {}
        for folder in self.sources().values():
            for path in sorted((folder / _DEVICE_LINKS).glob("*.json")):
                try:
                    said = json.loads(path.read_text(encoding="utf-8"))
                    links = {link["relpath"]: link["target"] for link in said["links"]}
                    found[path.stem] = (said["version"], self._resolved(links, folder))
                except (ValueError, KeyError, TypeError) as problem:
                    raise RuntimeError(f"{path} is damaged ({problem}); install its package again") from None
        return found

    def _resolved(self, links, folder):
        """Follow links of a device package to its files; none may leave the packages."""
        files = {}
        for relative in links:
            target, seen = relative, set()
            while target in links and target not in seen:
                seen.add(target)
                target = posixpath.normpath(posixpath.join(posixpath.dirname(target), links[target]))
            path = Path(os.path.normpath(self.root / target))
            if posixpath.normpath(relative) != relative or relative.startswith(("/", "../")):
                raise ValueError(f"{relative} leaves the tree")
            if folder not in path.parents:
                raise ValueError(f"{relative} links to {path}")
            files[relative] = path
        return files

    def state(self):
        try:
            return json.loads((self.root / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def is_current(self):
        if self.tar is not None:
            return False
        state = self.state()
        if state is None:
            return False
        return state["version"] == _dist_info.__version__ and state["sources"] == self.fingerprint()

    def bring_up_to_date(self, force=False):
        with _locked(self.record):
            if not force and self.is_current():
                return  # another process was faster
            tar = self.tar
            state = self.state()
            if tar is not None:
                own = self._extract(tar)
            elif state is not None:
                own = state["own"]
            else:
                raise RuntimeError(
                    f"{self.package} holds no archive and {self.root} is not expanded; "
                    "install rocm[devel] again"
                )
            linked = self._link(set(own), (state or {}).get("linked", []))
            self._record([f"{self.root.name}/{_STATE}"])
            _write_text(
                self.root / _STATE,
                json.dumps(
                    {
                        "version": _dist_info.__version__,
                        "sources": self.fingerprint(),
                        "own": own,
                        "linked": linked,
                    }
                ),
            )
            if tar is not None:
                tar.unlink()

    def _extract(self, path):
        """Make the archive's links. Gives all paths in the tree that are the devel wheel's own."""
        with tarfile.open(path) as archive:
            links = {self._safe_name(member): member.linkname for member in archive if not member.isdir()}
        self._record(links)
        for name, text in links.items():
            self._make_link(text, self.site / name)
        prefix = f"{self.root.name}/"
        return sorted(name[len(prefix) :] for name in {*links, *self._installed()})

    def _installed(self):
        """Files in the tree that the devel wheel was installed with: what came later has no hash."""
        rows = csv.reader(io.StringIO(self.record.read_text(encoding="utf-8")))
        return [row[0] for row in rows if row and row[1] and row[0].startswith(f"{self.root.name}/")]

    def _safe_name(self, member):
        name = posixpath.normpath(member.name)
        if PurePosixPath(name).parts[:1] != (self.root.name,) or ".." in PurePosixPath(name).parts:
            raise RuntimeError(f"the devel archive holds {member.name}, which is outside of its folder")
        if not member.issym():
            raise RuntimeError(f"the devel archive holds {member.name}, which is no symbolic link")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        if member.linkname.startswith("/") or not target.startswith("_rocm_"):
            raise RuntimeError(
                f"the devel archive holds {member.name} -> {member.linkname}, which leaves the packages"
            )
        return name

    def _make_link(self, text, path):
        self._real_folder(str(path.parent))
        target = Path(os.path.normpath(path.parent / text))
        in_tree = self.root == target or self.root in target.parents
        if not in_tree and target.is_file():
            _hard_link(target, path)
        else:
            _symlink(text, path, target)

    def _real_folder(self, folder):
        """Make a folder, and see that no symbolic link leads out of the tree on the way to it."""
        if folder in self._real_folders:
            return  # nothing here ever puts a link in a folder's place
        os.makedirs(folder, exist_ok=True)
        root = os.path.realpath(self.root)
        if os.path.commonpath([os.path.realpath(folder), root]) != root:
            raise RuntimeError(f"{folder} leads out of {self.root}")
        self._real_folders.add(folder)

    def _link(self, own, before):
        """Hard-link the files of the installed packages; the devel wheel's own come first."""
        devices = self.devices()
        claimed = {str(path) for _, files in devices.values() for path in files.values()}
        wanted = {}
        for folder in self.sources().values():
            for relative, path in _files_below(str(folder)):
                skipped = relative == "__init__.py" or relative.startswith(f"{_DEVICE_LINKS}/")
                if relative not in own and not skipped and path not in claimed:
                    wanted.setdefault(relative, path)
        for target, (version, files) in devices.items():
            problem = _gpus.device_problem(target, version)
            if problem:
                warnings.warn(f"{problem}; until then its files stay out of the development tree", stacklevel=2)
                continue
            brought = {relative: str(path) for relative, path in files.items() if relative not in own}
            wanted.update(brought)
            package = _dist_info.ALL_PACKAGES["device"].get_dist_package_name(target)
            self._record([f"{self.root.name}/{name}" for name in sorted(brought)], self.record_of(package))
        known = set(before)
        self._record([f"{self.root.name}/{relative}" for relative in sorted(wanted)])
        root = str(self.root)
        for relative, path in wanted.items():
            target = os.path.join(root, relative)
            if relative not in known or not _same(path, target):
                self._real_folder(os.path.dirname(target))
                _hard_link(path, target)
        for relative in known - set(wanted) - own:
            (self.root / relative).unlink(missing_ok=True)
        return sorted(wanted)

    def _record(self, names, record=None):
        """Add paths to a wheel's RECORD, this one's by default, so that an uninstall removes them."""
        record = record or self.record
        text = record.read_text(encoding="utf-8")
        listed = {row[0] for row in csv.reader(io.StringIO(text)) if row}
        rows = io.StringIO()
        csv.writer(rows, lineterminator="\n").writerows(
            (name, "", "") for name in names if name not in listed
        )
        if not rows.getvalue():
            return
        if text and not text.endswith("\n"):
            rows = io.StringIO("\n" + rows.getvalue())
        # In place, and in one write: the lock is held on this very file.
        with open(record, "a", encoding="utf-8", newline="") as stream:
            stream.write(rows.getvalue())


def _files_below(folder):
    """Path below a folder, with forward slashes, and path of each file; in order."""
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(current, name)
            yield path[len(folder) + 1 :].replace(os.sep, "/"), path


def _same(one, other):
    try:
        return os.path.samestat(os.stat(one), os.lstat(other))
    except OSError:
        return False


@contextmanager
def _replacing(path):
    """A free name beside `path`, which takes its place in the end."""
    folder = tempfile.mkdtemp(dir=os.path.dirname(path), prefix=".rocm-")
    try:
        temporary = os.path.join(folder, os.path.basename(path))
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hard_link(source, path):
    try:
        os.link(source, path)  # whole at once where the name is free
        return
    except OSError:
        if _same(source, path):
            return
    with _replacing(path) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)


def _symlink(text, path, target):
    try:
        os.symlink(text, path, target_is_directory=target.is_dir())
        return
    except OSError:
        if path.is_symlink() and os.readlink(path) == text:
            return
    with _replacing(path) as temporary:
        try:
            os.symlink(text, temporary, target_is_directory=target.is_dir())
        except OSError:
            # Windows without the right to make links; a folder cannot be stood in for.
            if not target.is_file():
                raise
            shutil.copy2(target, temporary)


def _write_text(path, text):
    with _replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


@contextmanager
def _locked(path):
    """Hold the lock of a file that an installer may replace meanwhile."""
    while True:
        with open(path, "r+b") as stream:
            _lock(stream)
            try:
                if os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                    yield
                    return
            finally:
                _unlock(stream)


if sys.platform == "win32":
    import msvcrt
    import time

    # Far behind the file's end: Windows would refuse reads of locked bytes.
    _LOCKED_BYTE = 1 << 30

    def _lock(stream):
        while True:
            stream.seek(_LOCKED_BYTE)
            try:
                msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                time.sleep(0.1)

    def _unlock(stream):
        stream.seek(_LOCKED_BYTE)
        msvcrt.locking(stream.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(stream):
        fcntl.flock(stream, fcntl.LOCK_EX)

    def _unlock(stream):
        fcntl.flock(stream, fcntl.LOCK_UN)
