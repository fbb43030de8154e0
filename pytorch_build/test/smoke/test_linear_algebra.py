# What BLAS, LAPACK and the convolution libraries behind torch compute, against values worked out by hand.
import pytest

pytestmark = pytest.mark.distribution("torch")

A = [[1.0, 2.0], [3.0, 4.0]]
B = [[5.0, 6.0], [7.0, 8.0]]
AB = [[19.0, 22.0], [43.0, 50.0]]
SYMMETRIC = [[4.0, 2.0], [2.0, 3.0]]


@pytest.fixture
def on(device):
    import torch

    return lambda values, **options: torch.tensor(values, device=device, **options)


@pytest.mark.needs("torch.bmm", "torch.einsum", "torch.addmm")
def test_the_matmul_family_agrees(on, close):
    import torch

    a, b = on(A), on(B)
    close(torch.mm(a, b), AB)
    close(a @ b, AB)
    close(torch.matmul(a, b), AB)
    close(torch.bmm(a.unsqueeze(0), b.unsqueeze(0))[0], AB)
    close(torch.einsum("ij,jk->ik", a, b), AB)
    close(torch.addmm(torch.ones_like(a), a, b), [[20.0, 23.0], [44.0, 51.0]])
    close(torch.mv(a, on([1.0, 1.0])), [3.0, 7.0])
    close(torch.dot(on([1.0, 2.0]), on([3.0, 4.0])), 11.0)
    close(a.t(), [[1.0, 3.0], [2.0, 4.0]])


@pytest.mark.needs("torch.bmm")
def test_a_big_product_is_right(device):
    import torch

    # integers that a float holds exactly, in a size that takes the library's own kernels
    left = torch.arange(512 * 512, device=device).reshape(512, 512).remainder(7).float()
    product = left @ torch.eye(512, device=device)
    assert torch.equal(product, left)
    rows = (left @ torch.ones(512, 1, device=device)).flatten()
    assert torch.equal(rows, left.sum(dim=1))


@pytest.mark.needs("torch.linalg.solve")
def test_linear_systems_are_solved(on, close):
    import torch

    close(torch.linalg.solve(on(A), on([5.0, 11.0])), [1.0, 2.0])
    close(torch.linalg.inv(on(A)), [[-2.0, 1.0], [1.5, -0.5]])
    close(torch.linalg.det(on(A)), -2.0)


@pytest.mark.needs("torch.linalg.svd")
def test_decompositions_have_known_values(on, close):
    import torch

    close(torch.linalg.svdvals(on([[3.0, 0.0], [4.0, 5.0]])), [45**0.5, 5**0.5])
    u, s, v = torch.linalg.svd(on(A))
    close(u @ torch.diag(s) @ v, A)
    close(torch.linalg.cholesky(on(SYMMETRIC)), [[2.0, 0.0], [1.0, 2**0.5]])
    close(torch.linalg.eigvalsh(on([[2.0, 1.0], [1.0, 2.0]])), [1.0, 3.0])
    q, r = torch.linalg.qr(on(A))
    close(q @ r, A)
    close(q.t() @ q, [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.needs("torch.fft.fft")
def test_a_fourier_transform_finds_the_frequency(device):
    import torch

    time = torch.arange(64, device=device) / 64
    spectrum = torch.fft.rfft(torch.sin(2 * torch.pi * 5 * time)).abs()
    assert int(spectrum.argmax()) == 5


@pytest.mark.needs("torch.nn.functional.conv2d")
def test_convolutions_have_known_values(on, close):
    from torch.nn.functional import conv2d, conv_transpose2d

    image = on([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]]])
    box = on([[[[1.0, 1.0], [1.0, 1.0]]]])
    close(conv2d(image, box), [[[[12.0, 16.0], [24.0, 28.0]]]])
    close(conv_transpose2d(on([[[[2.0]]]]), box), [[[[2.0, 2.0], [2.0, 2.0]]]])


@pytest.mark.needs("torch.nn.functional.conv2d")
def test_a_convolution_in_channels_last_is_the_same(device):
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Conv2d(8, 4, 3).to(device)
    image = torch.randn(2, 8, 16, 16, device=device)
    last = layer.to(memory_format=torch.channels_last)(image.to(memory_format=torch.channels_last))
    plain = torch.nn.functional.conv2d(image.contiguous(), layer.weight.contiguous(), layer.bias)
    assert torch.allclose(last, plain, atol=1e-3)


@pytest.mark.needs("torch.linalg.svd")
def test_lapack_is_built_in():
    import torch

    shown = torch.__config__.show()
    assert "LAPACK" in shown
    assert torch._C.has_lapack  # noqa: SLF001 - upstream offers no other name
