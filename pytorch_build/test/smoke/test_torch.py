# What torch computes, against values worked out by hand: BLAS, LAPACK, convolutions, autograd, torch.compile.
import pytest
from conftest import is_part_of_run

pytestmark = pytest.mark.distribution("torch")

A = [
    [1.0, 2.0],
    [3.0, 4.0],
]
B = [
    [5.0, 6.0],
    [7.0, 8.0],
]
A_TIMES_A = [
    [7.0, 10.0],
    [15.0, 22.0],
]
A_TIMES_B = [
    [19.0, 22.0],
    [43.0, 50.0],
]
ONE_PLUS_A_TIMES_B = [
    [20.0, 23.0],
    [44.0, 51.0],
]
A_TRANSPOSED = [
    [1.0, 3.0],
    [2.0, 4.0],
]
A_INVERTED = [
    [-2.0, 1.0],
    [1.5, -0.5],
]
IDENTITY = [
    [1.0, 0.0],
    [0.0, 1.0],
]
TRIANGULAR = [
    [3.0, 0.0],
    [4.0, 5.0],
]
SYMMETRIC = [
    [3.0, 1.0],
    [1.0, 3.0],
]
CHOLESKY_FACTOR = [
    [3**0.5, 0.0],
    [1 / 3**0.5, (8 / 3) ** 0.5],
]


# With what the sample's miniature has, too


def test_matmul_has_known_values(torch):
    product = torch.matmul(torch.tensor(A), torch.tensor(B))

    assert product.tolist() == A_TIMES_B


def test_elementwise_and_reduction(torch):
    matrix = torch.ones(3, 4)

    assert (matrix + matrix).sum().tolist() == 24.0


def test_configuration_names_a_blas(torch):
    assert "BLAS" in torch.__config__.show()


def test_rocm_build_says_so(torch):
    if not is_part_of_run("rocm"):
        pytest.skip("a build without ROCm")

    assert torch.version.hip
    assert torch.version.cuda is None


@pytest.mark.gpu
def test_matmul_on_the_gpu(torch):
    matrix = torch.tensor(A).cuda()

    assert torch.matmul(matrix, matrix).tolist() == A_TIMES_A


# Products


@pytest.fixture
def tensor(torch, device):
    """Return what makes a tensor on the device."""
    return lambda values: torch.tensor(values, device=device)


@pytest.mark.needs("torch.bmm", "torch.einsum", "torch.addmm")
def test_the_matmul_family_agrees(torch, tensor, assert_close):
    a = tensor(A)
    b = tensor(B)

    assert_close(torch.mm(a, b), A_TIMES_B)
    assert_close(a @ b, A_TIMES_B)
    assert_close(torch.matmul(a, b), A_TIMES_B)
    batch_product = torch.bmm(a.unsqueeze(0), b.unsqueeze(0))
    assert_close(batch_product[0], A_TIMES_B)
    assert_close(torch.einsum("ij,jk->ik", a, b), A_TIMES_B)
    assert_close(torch.addmm(torch.ones_like(a), a, b), ONE_PLUS_A_TIMES_B)
    assert_close(torch.mv(a, tensor([1.0, 1.0])), [3.0, 7.0])
    assert_close(torch.dot(a[0], a[1]), 11.0)
    assert_close(a.t(), A_TRANSPOSED)


@pytest.mark.needs("torch.bmm")
def test_a_big_product_is_right(torch, device):
    # Integers that a float holds exactly, in a size that takes the library's own kernels.
    size = 512
    numbers = torch.arange(size * size, device=device)
    matrix = numbers.reshape(size, size).remainder(7).float()

    product = matrix @ torch.eye(size, device=device)
    row_sums = matrix @ torch.ones(size, 1, device=device)

    assert torch.equal(product, matrix)
    assert torch.equal(row_sums.flatten(), matrix.sum(dim=1))


# Linear algebra


@pytest.mark.needs("torch.linalg.solve")
def test_linear_systems_are_solved(torch, tensor, assert_close):
    a = tensor(A)

    assert_close(torch.linalg.solve(a, tensor([5.0, 11.0])), [1.0, 2.0])
    assert_close(torch.linalg.inv(a), A_INVERTED)
    assert_close(torch.linalg.det(a), -2.0)


@pytest.mark.needs("torch.linalg.svd")
def test_singular_values_are_known(torch, tensor, assert_close):
    matrix = tensor(TRIANGULAR)

    singular_values = torch.linalg.svdvals(matrix)
    u, s, v = torch.linalg.svd(matrix)

    assert_close(singular_values, [45**0.5, 5**0.5])
    assert_close(u @ torch.diag(s) @ v, TRIANGULAR)


@pytest.mark.needs("torch.linalg.svd")
def test_decompositions_have_known_values(torch, tensor, assert_close):
    matrix = tensor(SYMMETRIC)

    factor = torch.linalg.cholesky(matrix)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    q, r = torch.linalg.qr(matrix)

    assert_close(factor, CHOLESKY_FACTOR)
    assert_close(eigenvalues, [2.0, 4.0])
    assert_close(q @ r, SYMMETRIC)
    assert_close(q.t() @ q, IDENTITY)


@pytest.mark.needs("torch.linalg.svd")
def test_lapack_is_built_in(torch):
    assert "LAPACK" in torch.__config__.show()
    assert torch._C.has_lapack  # noqa: SLF001 - upstream offers no other name


# Signals and images


@pytest.mark.needs("torch.fft.fft")
def test_a_fourier_transform_finds_the_frequency(torch, device):
    time = torch.arange(64, device=device) / 64
    wave = torch.sin(2 * torch.pi * 5 * time)

    spectrum = torch.fft.rfft(wave).abs()

    assert int(spectrum.argmax()) == 5


IMAGE = [
    [1.0, 2.0, 3.0],
    [4.0, 5.0, 6.0],
    [7.0, 8.0, 9.0],
]
SUMS_OF_FOUR = [
    [12.0, 16.0],
    [24.0, 28.0],
]
TWOS = [
    [2.0, 2.0],
    [2.0, 2.0],
]


@pytest.mark.needs("torch.nn.functional.conv2d")
def test_convolutions_have_known_values(torch, tensor, device, assert_close):
    from torch.nn.functional import conv2d, conv_transpose2d

    box = torch.ones(1, 1, 2, 2, device=device)

    assert_close(conv2d(tensor([[IMAGE]]), box), [[SUMS_OF_FOUR]])
    assert_close(conv_transpose2d(tensor([[[[2.0]]]]), box), [[TWOS]])


@pytest.mark.needs("torch.nn.functional.conv2d")
def test_a_convolution_in_channels_last_is_the_same(torch, device):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(8, 4, 3).to(device)
    image = torch.randn(2, 8, 16, 16, device=device)

    layer_in_channels_last = layer.to(memory_format=torch.channels_last)
    image_in_channels_last = image.to(memory_format=torch.channels_last)
    channels_last = layer_in_channels_last(image_in_channels_last)
    contiguous = torch.nn.functional.conv2d(image.contiguous(), layer.weight.contiguous(), layer.bias)

    assert torch.allclose(channels_last, contiguous, atol=1e-3)


# Types of numbers

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
def test_every_float_multiplies_matrices(torch, name, tensor):
    matrix = tensor(A).to(getattr(torch, name))

    assert (matrix @ matrix).tolist() == A_TIMES_A


@pytest.mark.needs("torch.complex64")
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_multiply(torch, name, device):
    number = torch.tensor([1 + 2j], dtype=getattr(torch, name), device=device)

    assert (number * number).tolist() == [-3 + 4j]


# Training


@pytest.mark.needs("torch.autograd.grad")
def test_an_autograd_step_has_known_gradients(torch, device, assert_close):
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)

    (x * x * x).sum().backward()
    (gradient_of_square,) = torch.autograd.grad((x * x).sum(), x)

    assert_close(x.grad, [3.0, 12.0, 27.0])
    assert_close(gradient_of_square, [2.0, 4.0, 6.0])


def train(model, optimizer, loss_of, *, steps):
    """Train a model; return its last loss."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.needs("torch.optim.SGD")
def test_a_training_loop_finds_the_line(torch, device, assert_close):
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64, device=device).unsqueeze(1)
    y = 3 * x + 0.5
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    loss = train(
        model,
        optimizer,
        lambda model: torch.nn.functional.mse_loss(model(x), y),
        steps=100,
    )

    assert loss < 1e-5
    assert_close(model.weight.detach(), [[3.0]], 1e-2)
    assert_close(model.bias.detach(), [0.5], 1e-2)


PAIRS = [
    [0.0, 0.0],
    [0.0, 1.0],
    [1.0, 0.0],
    [1.0, 1.0],
]
EXCLUSIVE_OR = [
    [0.0],
    [1.0],
    [1.0],
    [0.0],
]


@pytest.mark.needs("torch.optim.Adam")
def test_a_network_learns_what_no_line_can(torch, tensor, device):
    from torch.nn.functional import binary_cross_entropy_with_logits

    torch.manual_seed(0)
    x = tensor(PAIRS)
    exclusive_or = tensor(EXCLUSIVE_OR)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 1),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    train(
        model,
        optimizer,
        lambda model: binary_cross_entropy_with_logits(model(x), exclusive_or),
        steps=300,
    )

    assert ((model(x) > 0).float() == exclusive_or).all()


# torch.compile


def gelu_of_sum(a, b):
    import torch

    return torch.nn.functional.gelu(a + b).sum(dim=-1)


@pytest.mark.needs("torch.compile")
def test_a_function_is_traced_and_gives_the_same(torch, device):
    a = torch.randn(8, 32, device=device)
    b = torch.randn(8, 32, device=device)

    traced = torch.compile(gelu_of_sum, backend="aot_eager", fullgraph=True)

    assert torch.allclose(traced(a, b), gelu_of_sum(a, b), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.distribution("triton")
@pytest.mark.needs("torch.compile")
def test_a_compiled_function_gives_the_same(torch):
    a = torch.randn(8, 1024, device="cuda")
    b = torch.randn(8, 1024, device="cuda")

    compiled = torch.compile(gelu_of_sum, fullgraph=True)

    assert torch.allclose(compiled(a, b), gelu_of_sum(a, b), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.distribution("triton")
@pytest.mark.needs("torch.compile")
def test_a_compiled_network_has_the_same_gradients(torch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 4),
    ).cuda()
    x = torch.randn(8, 16, device="cuda")

    model(x).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model)(x).sum().backward()

    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-4)
