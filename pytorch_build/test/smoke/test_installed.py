# What is installed: the versions, and what each companion of torch computes.
from importlib import import_module, metadata

import pytest
from conftest import EXPECTED_VERSIONS, MODULE_VERSIONS, is_part_of_run


def test_something_is_expected():
    assert EXPECTED_VERSIONS or is_part_of_run("torch"), "no distribution of a PyTorch build is installed"


@pytest.mark.parametrize("distribution", EXPECTED_VERSIONS)
def test_installed_version_is_the_recorded_one(distribution):
    assert metadata.version(distribution) == EXPECTED_VERSIONS[distribution]


@pytest.mark.parametrize("name", MODULE_VERSIONS)
def test_module_names_its_version(name):
    module = import_module(name)

    if hasattr(module, "__version__"):
        assert module.__version__ in MODULE_VERSIONS[name]


@pytest.mark.distribution("torchaudio")
def test_torchaudio_computes_decibels(torch):
    from torchaudio.functional import amplitude_to_DB

    amplitudes = torch.tensor([1.0, 10.0, 100.0])

    decibels = amplitude_to_DB(amplitudes, 10.0, 1e-10, 0.0)

    assert decibels.tolist() == pytest.approx([0.0, 10.0, 20.0], abs=1e-5)


@pytest.mark.distribution("torchaudio")
@pytest.mark.needs("torchaudio.transforms.Spectrogram")
def test_torchaudio_finds_a_tone(torch, device):
    import torchaudio

    rate = 16000
    time = torch.arange(rate, device=device) / rate
    tone = torch.sin(2 * torch.pi * 1000 * time)
    transform = torchaudio.transforms.Spectrogram(n_fft=400).to(device)

    spectrum = transform(tone).mean(dim=-1)
    halved = torchaudio.functional.resample(tone, rate, rate // 2)

    assert int(spectrum.argmax()) == 1000 * 400 // rate
    assert halved.shape == (rate // 2,)


@pytest.mark.distribution("torchaudio")
@pytest.mark.needs("torchaudio.functional.lfilter")
def test_torchaudio_filters_by_its_compiled_part(torch, device):
    from torchaudio.functional import lfilter

    signal = torch.ones(5, device=device)
    # A running sum: y[n] = x[n] + y[n - 1].
    denominator = torch.tensor([1.0, -1.0], device=device)
    numerator = torch.tensor([1.0, 0.0], device=device)

    sums = lfilter(signal, denominator, numerator, clamp=False)

    assert sums.tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])


BOXES = [
    [0.0, 0.0, 10.0, 10.0],
    [1.0, 1.0, 10.0, 10.0],
    [20.0, 20.0, 30.0, 30.0],
]


@pytest.mark.distribution("torchvision")
def test_torchvision_drops_the_overlapping_box(torch):
    from torchvision.ops import nms

    scores = torch.tensor([0.9, 0.8, 0.7])

    kept_indexes = nms(torch.tensor(BOXES), scores, 0.5)

    assert [int(index) for index in kept_indexes.tolist()] == [0, 2]


@pytest.mark.distribution("torchvision")
@pytest.mark.needs("torchvision.ops.roi_align")
def test_torchvision_pools_regions(torch, device):
    from torchvision.ops import roi_align

    image = torch.arange(16.0, device=device).reshape(1, 1, 4, 4)
    # The image's number, and the corners of the region.
    region = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]], device=device)

    pooled = roi_align(image, region, output_size=(2, 2), sampling_ratio=2, aligned=True)

    assert pooled.flatten().tolist() == pytest.approx([2.5, 4.5, 10.5, 12.5])


@pytest.mark.distribution("torchvision")
@pytest.mark.needs("torchvision.models.resnet18")
def test_torchvision_runs_a_network(torch, device):
    from torchvision.models import resnet18

    torch.manual_seed(0)
    network = resnet18(weights=None).to(device).eval()

    scores = network(torch.rand(2, 3, 64, 64, device=device))
    scores.sum().backward()

    assert scores.shape == (2, 1000)
    assert scores.isfinite().all()
    assert network.conv1.weight.grad.abs().sum() > 0


@pytest.mark.distribution("triton")
def test_triton_divides_rounding_up():
    import triton

    assert triton.cdiv(10, 4) == 3
    assert triton.next_power_of_2(100) == 128


@pytest.mark.distribution("apex")
def test_apex_has_its_compiled_part(torch):
    import apex

    if hasattr(apex, "fused_scale_bias_relu"):
        # the sample's
        scaled = apex.fused_scale_bias_relu(torch.tensor([-1.0, 2.0]), 3.0, 1.0)
        assert scaled.tolist() == pytest.approx([0.0, 7.0])
        return

    import apex_C

    tensors = [torch.ones(2), torch.zeros(2)]
    assert apex_C.flatten(tensors).tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.distribution("rocm")
def test_rocm_libraries_load():
    import rocm_sdk

    rocm_sdk.preload_libraries("amdhip64", "hipblas")

    assert rocm_sdk.find_libraries("amdhip64")
