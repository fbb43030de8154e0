# torch.compile: tracing everywhere, and code of triton's where triton and a GPU are.
import pytest

pytestmark = [pytest.mark.distribution("torch"), pytest.mark.needs("torch.compile")]


def gelu_of_sum(a, b):
    import torch

    return torch.nn.functional.gelu(a + b).sum(dim=-1)


def test_a_function_is_traced_and_gives_the_same(device):
    import torch

    a, b = torch.randn(8, 32, device=device), torch.randn(8, 32, device=device)
    traced = torch.compile(gelu_of_sum, backend="aot_eager", fullgraph=True)
    assert torch.allclose(traced(a, b), gelu_of_sum(a, b), atol=1e-5)


@pytest.mark.gpu
@pytest.mark.distribution("triton")
def test_a_compiled_function_gives_the_same():
    import torch

    a, b = torch.randn(8, 1024, device="cuda"), torch.randn(8, 1024, device="cuda")
    compiled = torch.compile(gelu_of_sum, fullgraph=True)
    assert torch.allclose(compiled(a, b), gelu_of_sum(a, b), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.distribution("triton")
def test_a_compiled_network_has_the_same_gradients():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda()
    x = torch.randn(8, 16, device="cuda")
    model(x).sum().backward()
    wanted = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    torch.compile(model)(x).sum().backward()
    for one, gradient in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(one.grad, gradient, atol=1e-4)
