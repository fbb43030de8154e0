"""Expands the development tree beside the packages it belongs to, and keeps it up to date.

The devel wheel installs the files that only developers need, and carries a tar with what no
wheel can hold: symbolic links. Expanded, it becomes one ROCm tree: those files, the tar's links,
and hard links to every file of the installed core and libraries packages. Each path is added
to the wheel's RECORD before it appears, so that an uninstall after an interrupted expansion
leaves nothing behind either. Device packages lie over the
libraries and say in ``.devel_links/{target}.json`` which links they bring; those are in their
own RECORD too, so that they go with them.
"""

import errno
import importlib.util
import json
import os
import posixpath
import tarfile
from pathlib import Path, PurePosixPath

from . import _dist_info, _files, _gpus, _installed

_TARS = ("_devel.tar", "_devel.tar.xz")
_STATE = ".rocm_sdk_devel.json"
_DEVICE_LINKS = ".devel_links"
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


def get_devel_root(force=False):
    """Return the development tree, expanded if need be.

    Args:
        force: Compare every link, even if nothing seems to have changed.

    Raises:
        ModuleNotFoundError: The devel package is not installed.
        RuntimeError: Packages have different versions, the archive or a RECORD is damaged, or the tree must
            be changed and this user may not.
    """
    tree = _DevelopmentTree()
    if not force and tree.is_current():
        return tree.root

    try:
        tree.bring_up_to_date(force=force)
    except OSError as problem:
        if problem.errno not in _NOT_PERMITTED:
            raise
        # The usual case of an image: one user has expanded the tree, another one uses it.
        if not tree.is_current():
            raise RuntimeError(
                f"{problem.filename or tree.root} cannot be written; "
                "run `rocm-sdk init` once as a user who may"
            ) from problem
    return tree.root


class _DevelopmentTree:
    """The development tree of this environment."""

    def __init__(self):
        entry = _dist_info.ALL_PACKAGES["devel"]
        self._distribution = entry.get_dist_package_name()
        spec = importlib.util.find_spec(entry.get_pure_py_package_name())
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{self._distribution} is not installed")

        self._package = Path(spec.origin).absolute().parent
        self._site = self._package.parent
        self._real_folders = set()
        self.root = self._site / entry.get_py_package_name()

    def is_current(self):
        """Return whether the tree is expanded, and the packages are those that it was expanded with."""
        if self._tar() is not None:
            return False
        state = self._read_state()
        if state is None:
            return False
        return (
            state["version"] == _dist_info.__version__
            and state["sources"] == self._fingerprint()
        )

    def bring_up_to_date(self, force=False):
        """Expand the tree, or link to what has been installed since."""
        _installed.require_one_version()
        record = _installed.find_record(self._site, self._distribution)
        with _files.locked(record):
            if not force and self.is_current():
                return  # another process was faster

            tar = self._tar()
            state = self._read_state()
            if tar is not None:
                own_paths = self._make_links_of(tar, record)
            elif state is not None:
                own_paths = state["own"]
            else:
                raise RuntimeError(
                    f"{self._package} holds no archive and {self.root} is not expanded; "
                    "install rocm[devel] again"
                )

            linked_before = set(state["linked"]) if state is not None else set()
            linked_paths = self._link_packages(
                record, set(own_paths), linked_before
            )
            self._write_state(record, own_paths, linked_paths)
            if tar is not None:
                tar.unlink()

    # What the tree follows from

    def _tar(self):
        """Return the archive of links, which is there until the tree is expanded; else None."""
        for name in _TARS:
            if (self._package / name).exists():
                return self._package / name
        return None

    def _read_state(self):
        """Return what the last expansion noted, or None."""
        try:
            return json.loads((self.root / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _write_state(self, record, own_paths, linked_paths):
        _installed.add_to_record(record, [f"{self.root.name}/{_STATE}"])
        state = {
            "version": _dist_info.__version__,
            "sources": self._fingerprint(),
            "own": own_paths,
            "linked": linked_paths,
        }
        _files.write_text(self.root / _STATE, json.dumps(state))

    def _payloads(self):
        """Return the folders of installed packages whose files belong into the tree, by distribution."""
        names = ["core"]
        if _dist_info.has_libraries():
            names.append("libraries")

        folders = {}
        for name in names:
            entry = _dist_info.ALL_PACKAGES[name]
            spec = importlib.util.find_spec(entry.get_py_package_name())
            if spec is not None and spec.origin:
                folders[entry.get_dist_package_name()] = (
                    Path(spec.origin).absolute().parent
                )
        return folders

    def _device_listings(self):
        """Return the lists of links of installed device packages: a path each, whose stem is the target."""
        listings = []
        for folder in self._payloads().values():
            listings += sorted((folder / _DEVICE_LINKS).glob("*.json"))
        return listings

    def _fingerprint(self):
        """Return what changes when a package is installed, removed or replaced by another one.

        A device package's RECORD has its links, too: one that was removed, links and all, and installed again
        is not the one that the tree was expanded with.
        """
        digests = {}
        for distribution, folder in self._payloads().items():
            digests[distribution] = _installed.record_digest(
                folder.parent, distribution
            )
        for listing in self._device_listings():
            distribution = _device_distribution(listing.stem)
            digests[distribution] = _installed.record_digest(
                self._site, distribution
            )
        return digests

    # The archive

    def _make_links_of(self, tar, record):
        """Make the archive's links; return all paths in the tree that are the devel wheel's own."""
        with tarfile.open(tar) as archive:
            links = {
                self._safe_name(member): member.linkname
                for member in archive
                if not member.isdir()
            }
        _installed.add_to_record(record, links)
        for name, text in links.items():
            self._make_link(text, self._site / name)

        prefix = f"{self.root.name}/"
        installed_files = [
            path
            for path in _installed.recorded_paths(record)
            if path.startswith(prefix)
        ]
        return sorted(path[len(prefix) :] for path in {*links, *installed_files})

    def _safe_name(self, member):
        """Return where a member of the archive goes: a link in the tree that leads to a package of ROCm."""
        name = posixpath.normpath(member.name)
        if (
            PurePosixPath(name).parts[:1] != (self.root.name,)
            or ".." in PurePosixPath(name).parts
        ):
            raise RuntimeError(
                f"the devel archive holds {member.name}, which is outside of its folder"
            )
        if not member.issym():
            raise RuntimeError(
                f"the devel archive holds {member.name}, which is no symbolic link"
            )

        target = posixpath.normpath(
            posixpath.join(posixpath.dirname(name), member.linkname)
        )
        if member.linkname.startswith("/") or not target.startswith("_rocm_"):
            raise RuntimeError(
                f"the devel archive holds {member.name} -> {member.linkname}, which leaves the packages"
            )
        return name

    def _make_link(self, text, path):
        self._make_real_folder(str(path.parent))
        target = Path(os.path.normpath(path.parent / text))
        is_in_tree = self.root == target or self.root in target.parents
        if not is_in_tree and target.is_file():
            _files.hard_link(target, path)
        else:
            _files.symlink(text, path, target)

    def _make_real_folder(self, folder):
        """Make a folder, and see that no symbolic link leads out of the tree on the way to it."""
        if folder in self._real_folders:
            return  # nothing here ever puts a link in a folder's place

        os.makedirs(folder, exist_ok=True)
        root = os.path.realpath(self.root)
        if os.path.commonpath([os.path.realpath(folder), root]) != root:
            raise RuntimeError(f"{folder} leads out of {self.root}")
        self._real_folders.add(folder)

    # The packages

    def _link_packages(self, record, own_paths, linked_before):
        """Hard-link the files of the installed packages; the devel wheel's own come first.

        Returns:
            The paths in the tree that are links, sorted.
        """
        device_files = self._device_files()
        sources = self._files_of_packages(own_paths, device_files)
        for target, files in device_files.items():
            device_sources = {
                path: file
                for path, file in files.items()
                if path not in own_paths
            }
            sources.update(device_sources)
            device_record = _installed.find_record(
                self._site, _device_distribution(target)
            )
            self._record_links(device_record, device_sources)
        self._record_links(record, sources)

        root = str(self.root)
        for relative, source in sources.items():
            path = os.path.join(root, relative)
            if relative not in linked_before or not _files.is_same_file(
                source, path
            ):
                self._make_real_folder(os.path.dirname(path))
                _files.hard_link(source, path)

        for relative in linked_before - set(sources) - own_paths:
            (self.root / relative).unlink(missing_ok=True)
        return sorted(sources)

    def _record_links(self, record, relative_paths):
        _installed.add_to_record(
            record,
            [f"{self.root.name}/{path}" for path in sorted(relative_paths)],
        )

    def _files_of_packages(self, own_paths, device_files):
        """Return the files of core and libraries that the tree has: path in the tree -> file."""
        files_of_devices = set()
        for files in device_files.values():
            files_of_devices.update(files.values())

        sources = {}
        for folder in self._payloads().values():
            for relative, path in _files.files_below(str(folder)):
                is_of_python = relative == "__init__.py" or relative.startswith(
                    f"{_DEVICE_LINKS}/"
                )
                if (
                    not is_of_python
                    and relative not in own_paths
                    and path not in files_of_devices
                ):
                    sources.setdefault(relative, path)
        return sources

    def _device_files(self):
        """Return the files that installed device packages bring: gfx target -> path in the tree -> file."""
        files = {}
        for listing in self._device_listings():
            folder = listing.parents[1]
            try:
                content = json.loads(listing.read_text(encoding="utf-8"))
                version = content["version"]
                links = {
                    link["relpath"]: link["target"] for link in content["links"]
                }
                files[listing.stem] = self._resolved_files(links, folder)
            except (ValueError, KeyError, TypeError) as problem:
                raise RuntimeError(
                    f"{listing} is damaged ({problem}); install its package again"
                ) from None

            problem = _gpus.device_problem(listing.stem, version)
            if problem is not None:
                raise RuntimeError(problem)
        return files

    def _resolved_files(self, links, folder):
        """Follow links of a device package to its files; none may leave the packages."""
        files = {}
        for relative in links:
            target = relative
            followed = set()
            while target in links and target not in followed:
                followed.add(target)
                target = posixpath.normpath(
                    posixpath.join(posixpath.dirname(target), links[target])
                )

            path = Path(os.path.normpath(self.root / target))
            if posixpath.normpath(relative) != relative or relative.startswith(
                ("/", "../")
            ):
                raise ValueError(f"{relative} is not a path in the tree")
            if folder not in path.parents:
                raise ValueError(f"{relative} leads out of {folder.name}")
            files[relative] = str(path)
        return files


def _device_distribution(target):
    return _dist_info.ALL_PACKAGES["device"].get_dist_package_name(target)
