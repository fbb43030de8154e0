import pytest

pytestmark = pytest.mark.distribution("torch")


def test_matmul_has_known_values():
    import torch

    product = torch.matmul(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert product.tolist() == [[19.0, 22.0], [43.0, 50.0]]


def test_elementwise_and_reduction():
    import torch

    total = (torch.ones(3, 4) + torch.ones(3, 4)).sum()
    assert total.tolist() == 24.0


def test_configuration_names_a_blas():
    import torch

    assert "BLAS" in torch.__config__.show()


def test_rocm_build_says_so(versions):
    import torch

    if "rocm" not in versions:
        pytest.skip("a build without ROCm")
    assert torch.version.hip
    assert torch.version.cuda is None


@pytest.mark.gpu
def test_matmul_on_the_gpu():
    import torch

    left = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).cuda()
    assert torch.matmul(left, left).tolist() == [[7.0, 10.0], [15.0, 22.0]]
