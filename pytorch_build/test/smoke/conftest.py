"""What the smoke tests expect: SMOKE_EXPECT is JSON, distribution -> version that must be installed.
SMOKE_GPU names the GPU that torch must see; without it the tests of a GPU are skipped where torch sees none.

Standard library and pytest only: these tests run in the target environment, and as
plain `pytest pytorch_build/test/smoke` in any environment that has PyTorch.
"""

import importlib
import json
import os
from importlib import metadata

import pytest

DISTRIBUTIONS = ("triton", "torch", "torchaudio", "torchvision", "apex", "rocm")


def expected():
    if expected := os.environ.get("SMOKE_EXPECT"):
        return json.loads(expected)
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def pytest_configure(config):
    config.addinivalue_line("markers", "distribution(name): needs this distribution")
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line("markers", "needs(*names): what the sample's miniature packages may lack")


def pytest_collection_modifyitems(items):
    present = expected()
    for item in items:
        # a test's own marker stands beside its module's
        absent = {one.args[0] for one in item.iter_markers("distribution")} - present.keys()
        if absent:
            item.add_marker(pytest.mark.skip(reason=f"{min(absent)} is not part of this run"))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            if os.environ.get("SMOKE_GPU"):
                pytest.fail(
                    f"torch sees no GPU, and this machine has {os.environ['SMOKE_GPU']}", pytrace=False
                )
            pytest.skip("torch sees no GPU in this machine")

    marker = item.get_closest_marker("needs")
    for name in marker.args if marker else ():
        if not has(name):
            # only miniatures are excused: in a real wheel it is what the test is there to find
            if "sample" in version_of(name.partition(".")[0]):
                pytest.skip(f"the sample has no {name}")
            pytest.fail(f"there is no {name}", pytrace=False)


def version_of(name):
    return getattr(importlib.import_module(name), "__version__", "")


def has(name):
    """Return whether a dotted name is there, modules imported on the way."""
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split(".") if rest else ():
        module = f"{module}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(module)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def pytest_report_header():
    return "expected: " + ", ".join(f"{name} {version}" for name, version in sorted(expected().items()))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Return each kind of device in turn; torch's cuda is ROCm, too."""
    return request.param


@pytest.fixture
def close():
    """Return the comparison: both as nested lists of numbers, so that no torch is needed to compare."""

    def compare(found, wanted, tolerance=1e-4):
        assert flat(found.tolist()) == pytest.approx(flat(wanted), rel=tolerance, abs=tolerance)

    return compare


def flat(values):
    if not isinstance(values, list):
        return [values]
    return [one for value in values for one in flat(value)]


@pytest.fixture(scope="session")
def torch():
    """Return torch, imported where a test runs: it may not be part of this run."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def versions():
    return expected()
