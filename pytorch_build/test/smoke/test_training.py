# Autograd, dtypes, and a network that learns.
import pytest

pytestmark = pytest.mark.distribution("torch")

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


@pytest.mark.needs("torch.bfloat16", "torch.int8")
@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_every_dtype_computes(name, device):
    import torch

    values = torch.arange(1, 5, device=device).to(getattr(torch, name))
    assert (values + values).tolist() == [2, 4, 6, 8]
    assert (values * values).tolist() == [1, 4, 9, 16]
    assert values.sum().item() == 10
    assert values.to(torch.float64).mean().item() == 2.5


@pytest.mark.needs("torch.bfloat16")
@pytest.mark.parametrize("name", FLOATS)
def test_every_float_multiplies_matrices(name, device):
    import torch

    left = torch.tensor([[1, 2], [3, 4]], device=device).to(getattr(torch, name))
    assert (left @ left).tolist() == [[7, 10], [15, 22]]


@pytest.mark.needs("torch.complex64")
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_numbers_multiply(name, device):
    import torch

    value = torch.tensor([1 + 2j], dtype=getattr(torch, name), device=device)
    assert (value * value).tolist() == [-3 + 4j]


@pytest.mark.needs("torch.autograd.grad")
def test_an_autograd_step_has_known_gradients(device, close):
    import torch

    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    (x * x * x).sum().backward()
    close(x.grad, [3.0, 12.0, 27.0])
    (second,) = torch.autograd.grad((x * x).sum(), x)
    close(second, [2.0, 4.0, 6.0])


@pytest.mark.needs("torch.optim.SGD")
def test_a_training_loop_finds_the_line(device, close):
    import torch

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
def test_a_network_learns_what_no_line_can(device):
    import torch

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
