"""What the smoke tests are told of the environment, by variables.

SMOKE_EXPECT     JSON: the distributions that must be installed, with their versions
SMOKE_MODULES    JSON: the modules of these, with the versions that each may state
SMOKE_GPU        the GPU that torch must see; without it the tests of a GPU are skipped where torch sees none
SMOKE_MINIATURE  set for the sample's packages, which have little of the real ones

Without SMOKE_EXPECT, as `pytest pytorch_build/test/smoke` runs them in any environment that has PyTorch,
they are about whatever is installed. Standard library and pytest only: they run in the target environment.
"""

import importlib
import json
import os
from importlib import metadata

import pytest

EXPECTED_VERSIONS = json.loads(os.environ.get("SMOKE_EXPECT") or "{}")
MODULE_VERSIONS = json.loads(os.environ.get("SMOKE_MODULES") or "{}")


def is_part_of_run(distribution):
    """Return whether a distribution is tested: one that is expected, else one that is installed."""
    if EXPECTED_VERSIONS:
        return distribution in EXPECTED_VERSIONS
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def pytest_configure(config):
    config.addinivalue_line("markers", "distribution(name): needs this distribution")
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line("markers", "needs(*names): what the sample's miniature packages may lack")


def pytest_collection_modifyitems(items):
    for test in items:
        # A test's own marker stands beside its module's.
        for marker in test.iter_markers("distribution"):
            (distribution,) = marker.args
            if not is_part_of_run(distribution):
                reason = f"{distribution} is not part of this run"
                test.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None:
        require_gpu()

    marker = item.get_closest_marker("needs")
    if marker is not None:
        for name in marker.args:
            require_name(name)


def require_gpu():
    """Skip a test where torch sees no GPU; fail it where there is one that torch must see."""
    import torch

    if torch.cuda.is_available():
        return
    gpu = os.environ.get("SMOKE_GPU")
    if gpu:
        pytest.fail(f"torch sees no GPU, and this machine has {gpu}", pytrace=False)
    pytest.skip("torch sees no GPU in this machine")


def require_name(name):
    """Fail a test of something that a package lacks; only miniatures are excused, where it is skipped."""
    if has_name(name):
        return
    if is_miniature():
        pytest.skip(f"the sample has no {name}")
    pytest.fail(f"there is no {name}", pytrace=False)


def is_miniature():
    return bool(os.environ.get("SMOKE_MINIATURE"))


def has_name(name):
    """Return whether a dotted name is there, modules imported on the way."""
    path, *attributes = name.split(".")
    value = importlib.import_module(path)
    for attribute in attributes:
        path = f"{path}.{attribute}"
        if not hasattr(value, attribute):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        value = getattr(value, attribute)
    return True


def pytest_report_header():
    if not EXPECTED_VERSIONS:
        return "expected: whatever is installed"
    versions = [f"{name} {EXPECTED_VERSIONS[name]}" for name in sorted(EXPECTED_VERSIONS)]
    return f"expected: {', '.join(versions)}"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Return each kind of device in turn; torch's cuda is ROCm, too."""
    return request.param


@pytest.fixture
def assert_close():
    """Return the comparison: both as nested lists of numbers, so that no torch is needed to compare."""

    def compare(tensor, expected, tolerance=1e-4):
        assert flat(tensor.tolist()) == pytest.approx(flat(expected), rel=tolerance, abs=tolerance)

    return compare


def flat(values):
    """Return the numbers of nested lists, in their order."""
    if not isinstance(values, list):
        return [values]
    numbers = []
    for value in values:
        numbers += flat(value)
    return numbers


@pytest.fixture(scope="session")
def torch():
    """Return torch, imported where a test runs: it may not be part of this run."""
    return importlib.import_module("torch")
