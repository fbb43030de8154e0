import math

import pytest


@pytest.mark.distribution("torchaudio")
def test_torchaudio_computes_decibels():
    import torch
    import torchaudio

    assert torchaudio.__version__
    from torchaudio.functional import amplitude_to_DB

    decibels = amplitude_to_DB(torch.tensor([1.0, 10.0, 100.0]), 10.0, 1e-10, 0.0)
    assert decibels.tolist() == pytest.approx([0.0, 10.0, 20.0], abs=1e-5)


@pytest.mark.distribution("torchvision")
def test_torchvision_drops_the_overlapping_box():
    import torch
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
    assert [int(kept) for kept in nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()] == [0, 2]


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
