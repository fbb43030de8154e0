# What is installed: the versions, and what each companion of torch computes.
import math
from importlib import import_module, metadata

import pytest
from conftest import DISTRIBUTIONS, expected

NAMES = [name for name in DISTRIBUTIONS if name in expected()]


def test_something_is_expected():
    assert NAMES, "no distribution of a PyTorch build is installed"


@pytest.mark.parametrize("name", NAMES)
def test_installed_version_is_the_recorded_one(name, versions):
    assert metadata.version(name) == versions[name]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rocm"])
def test_module_names_its_version(name, versions):
    module = import_module(name)
    assert getattr(module, "__version__", versions[name]) == versions[name]


@pytest.mark.distribution("torchaudio")
def test_torchaudio_computes_decibels(torch):
    import torchaudio

    assert torchaudio.__version__
    from torchaudio.functional import amplitude_to_DB

    decibels = amplitude_to_DB(torch.tensor([1.0, 10.0, 100.0]), 10.0, 1e-10, 0.0)
    assert decibels.tolist() == pytest.approx([0.0, 10.0, 20.0], abs=1e-5)


@pytest.mark.distribution("torchvision")
def test_torchvision_drops_the_overlapping_box(torch):
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
    assert [int(kept) for kept in nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()] == [0, 2]


@pytest.mark.distribution("torchaudio")
@pytest.mark.needs("torchaudio.transforms.Spectrogram", "torchaudio.functional.lfilter")
def test_torchaudio_finds_a_tone_and_filters_it(torch, device):
    import torchaudio

    time = torch.arange(16000, device=device) / 16000
    tone = torch.sin(2 * torch.pi * 1000 * time)
    spectrum = torchaudio.transforms.Spectrogram(n_fft=400).to(device)(tone)
    assert int(spectrum.mean(dim=-1).argmax()) == 1000 * 400 // 16000
    halved = torchaudio.functional.resample(tone, 16000, 8000)
    assert halved.shape == (8000,)
    # a running sum of ones, by the compiled filter
    ones, kept = torch.ones(5, device=device), torch.tensor([1.0, -1.0], device=device)
    summed = torchaudio.functional.lfilter(ones, kept, torch.tensor([1.0, 0.0], device=device), clamp=False)
    assert summed.tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.distribution("torchvision")
@pytest.mark.needs("torchvision.ops.roi_align", "torchvision.models.resnet18")
def test_torchvision_pools_regions_and_runs_a_network(torch, device):
    import torchvision

    image = torch.arange(16.0, device=device).reshape(1, 1, 4, 4)
    box = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]], device=device)
    pooled = torchvision.ops.roi_align(image, box, output_size=(2, 2), sampling_ratio=2, aligned=True)
    assert pooled.flatten().tolist() == pytest.approx([2.5, 4.5, 10.5, 12.5])
    torch.manual_seed(0)
    network = torchvision.models.resnet18(weights=None).to(device).eval()
    scores = network(torch.rand(2, 3, 64, 64, device=device))
    assert scores.shape == (2, 1000)
    assert scores.isfinite().all()
    scores.sum().backward()
    assert network.conv1.weight.grad.abs().sum() > 0


@pytest.mark.distribution("triton")
def test_triton_divides_rounding_up():
    import triton

    assert triton.cdiv(10, 4) == math.ceil(10 / 4)
    assert triton.next_power_of_2(100) == 128


@pytest.mark.distribution("apex")
def test_apex_has_its_compiled_part():
    import apex
    import torch

    if not hasattr(apex, "fused_scale_bias_relu"):
        import apex_C

        flat = apex_C.flatten([torch.ones(2), torch.zeros(2)])
        assert flat.tolist() == [1.0, 1.0, 0.0, 0.0]
        return
    scaled = apex.fused_scale_bias_relu(torch.tensor([-1.0, 2.0]), 3.0, 1.0)
    assert scaled.tolist() == pytest.approx([0.0, 7.0])


@pytest.mark.distribution("rocm")
def test_rocm_libraries_load():
    import rocm_sdk

    rocm_sdk.preload_libraries("amdhip64", "hipblas")
    assert rocm_sdk.find_libraries("amdhip64")
