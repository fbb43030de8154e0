"""Checks of the `rocm` package itself."""

import rocm_sdk

from .. import _dist_info
from . import support
from .checks import Check, expect


def checks():
    for name, distribution in support.installed().items():
        yield Check("base", f"{name} has this version", _version, distribution)
    for name, function in (
        ("rocm-sdk-core is installed", _core),
        ("rocm-sdk version", _version_command),
        ("rocm-sdk targets", _targets_command),
        ("rocm-sdk path takes exactly one kind", _path_command),
        ("the default GPU family is one of the distribution's", _default_family),
        ("every library belongs to a package", _libraries),
        ("an unknown library is refused", _unknown_library),
        ("no names find no libraries", _no_libraries),
        ("a matching version passes", _matching_version),
        ("another version warns", _other_version_warns),
        ("another version can fail", _other_version_fails),
    ):
        yield Check("base", name, function)


def whole():
    """Checks that nothing of a package is missing, for when the development tree is expanded."""
    for name, distribution in support.installed().items():
        yield Check("base", f"{name} is whole", support.files_check, distribution)


def _version(distribution):
    found, wanted = distribution.version, _dist_info.__version__
    expect(found == wanted, f"it has {found}, and rocm has {wanted}")
    return found


def _core():
    expect(_dist_info.ALL_PACKAGES["core"].has_py_package(), "its files cannot be found")


def _version_command():
    status, out, error = support.python("-m", "rocm_sdk", "version")
    expect((status, out.strip()) == (0, _dist_info.__version__), f"{status}: {out}{error}")


def _targets_command():
    status, out, error = support.python("-m", "rocm_sdk", "targets")
    expect(status == 0, error)
    targets = out.strip().split(";")
    expect(all(target.startswith("gfx") for target in targets), f"it printed {out!r}")
    return out.strip()


def _path_command():
    for words in ((), ("--bin", "--root")):
        status, out, _ = support.python("-m", "rocm_sdk", "path", *words)
        expect(status == 2, f"rocm-sdk path {' '.join(words)}: {status}, {out}")


def _default_family():
    known = _dist_info.AVAILABLE_TARGET_FAMILIES
    expect(_dist_info.DEFAULT_TARGET_FAMILY in known, f"it is none of {known}")


def _libraries():
    unknown = [
        entry for entry in _dist_info.ALL_LIBRARIES.values() if entry.package not in _dist_info.ALL_PACKAGES
    ]
    expect(_dist_info.ALL_LIBRARIES and not unknown, f"{unknown} belong to none")


def _unknown_library():
    try:
        rocm_sdk.find_libraries("nonesuch")
    except ModuleNotFoundError as problem:
        expect("Unknown rocm library 'nonesuch'" in str(problem), str(problem))
    else:
        raise AssertionError("it was found")


def _no_libraries():
    expect(rocm_sdk.find_libraries() == [], "some were found")


def _matching_version():
    for wanted in (_dist_info.__version__, "*"):
        rocm_sdk.initialize_process(
            check_version=wanted, fail_on_version_mismatch=True, env_override=False
        )


def _other_version_warns():
    # in a process of its own: warnings are a setting of the whole process
    code = "import rocm_sdk; rocm_sdk.initialize_process(check_version='0.0.0', env_override=False)"
    status, _, error = support.python("-W", "always", "-c", code)
    expect(status == 0 and "UserWarning" in error, f"{support.ending(status)}: {error}")


def _other_version_fails():
    try:
        rocm_sdk.initialize_process(
            check_version="0.0.0", fail_on_version_mismatch=True, env_override=False
        )
    except RuntimeError:
        return
    raise AssertionError("it passed")
