"""Chooses the test modules that fit what is installed, and runs them."""

import importlib.util
import sys
import unittest

from .. import _dist_info


def modules():
    """Names of the test modules to run; says which ones are left out."""
    package = __package__
    names = [f"{package}.base_test", f"{package}.core_test"]
    if _dist_info.installed_target_families():
        names.append(f"{package}.libraries_test")
    else:
        print("NOTE: without tests of the libraries, which are not installed")
    if importlib.util.find_spec("rocm_sdk_devel") is not None:
        names.append(f"{package}.devel_test")
    else:
        print("NOTE: without tests of the development tree, which is not installed")
    return names


def main():
    """Run the tests; the exit status."""
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(modules())
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    if loader.errors or result.testsRun == 0:
        print("ERROR: no tests could be loaded")
        return 1
    return 0 if result.wasSuccessful() else 1
