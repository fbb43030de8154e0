"""Checks of the `rocm` package itself."""

import rocm_sdk

from .. import _dist_info, _installed
from . import support
from .check import Check, expect


def checks():
    """Yield the checks that hold whatever is installed."""
    for name, distribution in _installed.rocm_distributions().items():
        yield Check(
            "base", f"{name} has this version", _check_version, distribution
        )
    yield Check("base", "rocm-sdk-core is installed", _check_core)
    yield Check("base", "rocm-sdk version", _check_version_command)
    yield Check("base", "rocm-sdk targets", _check_targets_command)
    yield Check(
        "base", "rocm-sdk path takes exactly one kind", _check_path_command
    )
    yield Check(
        "base",
        "the default GPU family is one of the distribution's",
        _check_default_family,
    )
    yield Check("base", "every library belongs to a package", _check_libraries)
    yield Check("base", "an unknown library is refused", _check_unknown_library)
    yield Check("base", "no names find no libraries", _check_no_libraries)
    yield Check("base", "a matching version passes", _check_matching_version)
    yield Check("base", "another version warns", _check_other_version_warns)
    yield Check("base", "another version can fail", _check_other_version_fails)


def checks_of_files():
    """Yield checks that nothing of a package is missing, for when the development tree is expanded."""
    for name, distribution in _installed.rocm_distributions().items():
        yield Check(
            "base",
            f"{name} is whole",
            support.check_installed_files,
            distribution,
        )


def _check_version(distribution):
    version = distribution.version
    expect(
        version == _dist_info.__version__,
        f"it has {version}, and rocm has {_dist_info.__version__}",
    )


def _check_core():
    expect(
        _dist_info.ALL_PACKAGES["core"].has_py_package(),
        "its files cannot be found",
    )


def _check_version_command():
    result = support.run_python("-m", "rocm_sdk", "version")
    expect(
        result.status == 0 and result.output.strip() == _dist_info.__version__,
        result.summary,
    )


def _check_targets_command():
    result = support.run_python("-m", "rocm_sdk", "targets")
    expect(result.status == 0, result.summary)
    targets = result.output.strip().split(";")
    expect(
        all(target.startswith("gfx") for target in targets),
        f"it printed {result.output!r}",
    )


def _check_path_command():
    for options in ((), ("--bin", "--root")):
        result = support.run_python("-m", "rocm_sdk", "path", *options)
        expect(
            result.status == 2,
            f"rocm-sdk path {' '.join(options)}: {result.summary}",
        )


def _check_default_family():
    families = _dist_info.AVAILABLE_TARGET_FAMILIES
    expect(
        _dist_info.DEFAULT_TARGET_FAMILY in families, f"it is none of {families}"
    )


def _check_libraries():
    libraries = _dist_info.ALL_LIBRARIES.values()
    expect(libraries, "there are no libraries")
    stray_libraries = [
        library
        for library in libraries
        if library.package not in _dist_info.ALL_PACKAGES
    ]
    expect(not stray_libraries, f"{stray_libraries} belong to none")


def _check_unknown_library():
    try:
        rocm_sdk.find_libraries("nonesuch")
    except ModuleNotFoundError as problem:
        expect("Unknown rocm library 'nonesuch'" in str(problem), str(problem))
    else:
        raise AssertionError("it was found")


def _check_no_libraries():
    expect(rocm_sdk.find_libraries() == [], "some were found")


def _check_matching_version():
    for version in (_dist_info.__version__, "*"):
        rocm_sdk.initialize_process(
            check_version=version,
            fail_on_version_mismatch=True,
            env_override=False,
        )


def _check_other_version_warns():
    # in a process of its own: warnings are a setting of the whole process
    code = "import rocm_sdk; rocm_sdk.initialize_process(check_version='0.0.0', env_override=False)"
    result = support.run_python("-W", "always", "-c", code)
    expect(result.status == 0 and "UserWarning" in result.errors, result.summary)


def _check_other_version_fails():
    try:
        rocm_sdk.initialize_process(
            check_version="0.0.0",
            fail_on_version_mismatch=True,
            env_override=False,
        )
    except RuntimeError:
        return
    raise AssertionError("it passed")
