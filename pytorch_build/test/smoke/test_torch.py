# What torch computes, against values worked out by hand: BLAS, LAPACK, convolutions, autograd, torch.compile.
import pytest

pytestmark = pytest.mark.distribution("torch")


A = [[1.0, 2.0], [3.0, 4.0]]
B = [[5.0, 6.0], [7.0, 8.0]]
AB = [[19.0, 22.0], [43.0, 50.0]]
SYMMETRIC = [[4.0, 2.0], [2.0, 3.0]]


def test_matmul_has_known_values(torch):
    product = torch.matmul(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert product.tolist() == [[19.0, 22.0], [43.0, 50.0]]


def test_elementwise_and_reduction(torch):
    total = (torch.ones(3, 4) + torch.ones(3, 4)).sum()
    assert total.tolist() == 24.0


def test_configuration_names_a_blas(torch):
    assert "BLAS" in torch.__config__.show()


def test_rocm_build_says_so(torch, versions):
    if "rocm" not in versions:
        pytest.skip("a build without ROCm")
    assert torch.version.hip
    assert torch.version.cuda is None


@pytest.mark.gpu
def test_matmul_on_the_gpu(torch):
    left = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).cuda()
    assert torch.matmul(left, left).tolist() == [[7.0, 10.0], [15.0, 22.0]]


@pytest.fixture
def on(torch, device):
    return lambda values, **options: torch.tensor(values, device=device, **options)


@pytest.mark.needs("torch.bmm", "torch.einsum", "torch.addmm")
def test_the_matmul_family_agrees(torch, on, close):
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
def test_a_big_product_is_right(torch, device):
    # integers that a float holds exactly, in a size that takes the library's own kernels
    left = torch.arange(512 * 512, device=device).reshape(512, 512).remainder(7).float()
    product = left @ torch.eye(512, device=device)
    assert torch.equal(product, left)
    rows = (left @ torch.ones(512, 1, device=device)).flatten()
    assert torch.equal(rows, left.sum(dim=1))


@pytest.mark.needs("torch.linalg.solve")
def test_linear_systems_are_solved(torch, on, close):
    close(torch.linalg.solve(on(A), on([5.0, 11.0])), [1.0, 2.0])
    close(torch.linalg.inv(on(A)), [[-2.0, 1.0], [1.5, -0.5]])
    close(torch.linalg.det(on(A)), -2.0)


@pytest.mark.needs("torch.linalg.svd")
def test_decompositions_have_known_values(torch, on, close):
    close(torch.linalg.svdvals(on([[3.0, 0.0], [4.0, 5.0]])), [45**0.5, 5**0.5])
    u, s, v = torch.linalg.svd(on(A))
    close(u @ torch.diag(s) @ v, A)
    close(torch.linalg.cholesky(on(SYMMETRIC)), [[2.0, 0.0], [1.0, 2**0.5]])
    close(torch.linalg.eigvalsh(on([[2.0, 1.0], [1.0, 2.0]])), [1.0, 3.0])
    q, r = torch.linalg.qr(on(A))
    close(q @ r, A)
    close(q.t() @ q, [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.needs("torch.fft.fft")
def test_a_fourier_transform_finds_the_frequency(torch, device):
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
def test_a_convolution_in_channels_last_is_the_same(torch, device):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(8, 4, 3).to(device)
    image = torch.randn(2, 8, 16, 16, device=device)
    last = layer.to(memory_format=torch.channels_last)(image.to(memory_format=torch.channels_last))
    plain = torch.nn.functional.conv2d(image.contiguous(), layer.weight.contiguous(), layer.bias)
    assert torch.allclose(last, plain, atol=1e-3)


@pytest.mark.needs("torch.linalg.svd")
def test_lapack_is_built_in(torch):
    shown = torch.__config__.show()
    assert "LAPACK" in shown
    assert torch._C.has_lapack  # noqa: SLF001 - upstream offers no other name


FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


@pytest.mark.needs("torch.bfloat16", "torch.int8")
@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_every_dtype_computes(torch, name, device):
    values = torch.arange(1, 5, device=device).to(getattr(torch, name))
    assert (values + values).tolist() == [2, 4, 6, 8]
    assert (values * values).tolist() == [1, 4, 9, 16]
    assert values.sum().item() == 10
    assert values.to(torch.float64).mean().item() == 2.5


@pytest.mark.needs("torch.bfloat16")
@pytest.mark.parametrize("name", FLOATS)
def test_every_float_multiplies_matrices(torch, name, device):
    left = torch.tensor([[1, 2], [3, 4]], device=device).to(getattr(torch, name))
    assert (left @ left).tolist() == [[7, 10], [15, 22]]


@pytest.mark.needs("torch.complex64")
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_multiply(torch, name, device):
    value = torch.tensor([1 + 2j], dtype=getattr(torch, name), device=device)
    assert (value * value).tolist() == [-3 + 4j]


@pytest.mark.needs("torch.autograd.grad")
def test_an_autograd_step_has_known_gradients(torch, device, close):
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    (x * x * x).sum().backward()
    close(x.grad, [3.0, 12.0, 27.0])
    (second,) = torch.autograd.grad((x * x).sum(), x)
    close(second, [2.0, 4.0, 6.0])


@pytest.mark.needs("torch.optim.SGD")
def test_a_training_loop_finds_the_line(torch, device, close):
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64, device=device).unsqueeze(1)
    y = 3 * x + 0.5
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-5
    close(model.weight.detach(), [[3.0]], 1e-2)
    close(model.bias.detach(), [0.5], 1e-2)


@pytest.mark.needs("torch.optim.Adam")
def test_a_network_learns_what_no_line_can(torch, device):
    torch.manual_seed(0)
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], device=device)
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0]], device=device)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
    assert ((model(x) > 0).float() == y).all()


def gelu_of_sum(a, b):
    import torch

    return torch.nn.functional.gelu(a + b).sum(dim=-1)


@pytest.mark.needs("torch.compile")
def test_a_function_is_traced_and_gives_the_same(torch, device):
    a, b = torch.randn(8, 32, device=device), torch.randn(8, 32, device=device)
    traced = torch.compile(gelu_of_sum, backend="aot_eager", fullgraph=True)
    assert torch.allclose(traced(a, b), gelu_of_sum(a, b), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.distribution("triton")
@pytest.mark.needs("torch.compile")
def test_a_compiled_function_gives_the_same(torch):
    a, b = torch.randn(8, 1024, device="cuda"), torch.randn(8, 1024, device="cuda")
    compiled = torch.compile(gelu_of_sum, fullgraph=True)
    assert torch.allclose(compiled(a, b), gelu_of_sum(a, b), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.distribution("triton")
@pytest.mark.needs("torch.compile")
def test_a_compiled_network_has_the_same_gradients(torch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda()
    x = torch.randn(8, 16, device="cuda")
    model(x).sum().backward()
    wanted = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    torch.compile(model)(x).sum().backward()
    for one, gradient in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(one.grad, gradient, atol=1e-4)
