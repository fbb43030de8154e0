"""What wheels of a distribution may bring into an environment. Names are shell patterns."""

from __future__ import annotations

from core.data import Model


class Allowed(Model):
    """What wheels of a distribution may bring.

    Attributes:
        top_level: Files and folders in site-packages.
        programs: Console scripts, and files that are installed beside Python.
        entry_points: ``GROUP:NAME`` of everything that other packages look up.
        requirements: Distributions that METADATA names, with or without an extra.
        data_files: Paths below the environment's root, of the wheel's ``.data/data`` and ``.data/headers``.
        replaces: Distributions that are never installed beside this one, as they hold the same files.
    """

    top_level: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()

    def __or__(self, addition: Allowed) -> Allowed:
        """Return what either of the two allows."""
        return Allowed(
            top_level=self.top_level + addition.top_level,
            programs=self.programs + addition.programs,
            entry_points=self.entry_points + addition.entry_points,
            requirements=self.requirements + addition.requirements,
            data_files=self.data_files + addition.data_files,
            replaces=self.replaces + addition.replaces,
        )
