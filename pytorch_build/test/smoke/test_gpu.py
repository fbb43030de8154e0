# The runtime: streams, events, memory; and the ROCm libraries that torch has to find. Skipped without a GPU.
import ctypes
import sys

import pytest

pytestmark = pytest.mark.distribution("torch")

# of the HIP runtime, of a library that torch links, of one that torch opens itself
SYMBOLS = ("hipGetDeviceCount", "hipblasCreate", "amdsmi_init")


@pytest.mark.gpu
def test_the_gpu_is_of_an_architecture_that_the_wheel_has_code_for(torch):
    if not torch.version.hip:
        pytest.skip("a build without ROCm")
    target = torch.cuda.get_device_properties(0).gcnArchName.partition(":")[0]
    assert target in {one.partition(":")[0] for one in torch.cuda.get_arch_list()}


@pytest.mark.gpu
def test_streams_wait_for_each_other(torch):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    values = torch.ones(1 << 20, device="cuda")
    first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        for _ in range(50):
            values += 1
    second.wait_stream(first)
    with torch.cuda.stream(second):
        doubled = values * 2
    second.synchronize()
    assert doubled.eq(102).all().item()


@pytest.mark.gpu
def test_events_measure_time(torch):
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    left = torch.randn(1024, 1024, device="cuda")
    before.record()
    left @ left
    after.record()
    after.synchronize()
    assert 0 < before.elapsed_time(after) < 60_000


@pytest.mark.gpu
def test_memory_is_counted_and_given_back(torch):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before >= 64 << 20
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    del held
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
def test_copies_arrive_from_pinned_memory_too(torch):
    values = torch.arange(1 << 20).pin_memory()
    there = values.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(there.cpu(), values)


@pytest.mark.gpu
def test_too_much_memory_is_an_error_that_one_can_go_on_after(torch):
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 46, dtype=torch.uint8, device="cuda")
    assert torch.ones(2, device="cuda").sum().item() == 2


@pytest.mark.gpu
def test_random_numbers_repeat_by_seed(torch):
    torch.manual_seed(7)
    first = torch.randn(1000, device="cuda")
    torch.manual_seed(7)
    assert torch.equal(torch.randn(1000, device="cuda"), first)
    assert abs(first.mean().item()) < 0.2


@pytest.mark.skipif(sys.platform != "linux", reason="Windows has no one table of symbols")
@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbols_of_rocm_resolve(torch, symbol, versions):
    if not torch.version.hip:
        pytest.skip("a build without ROCm")
    loaded = hasattr(ctypes.CDLL(None), symbol)
    if not loaded and "sample" in versions.get("torch", torch.__version__):
        pytest.skip(f"the sample's ROCm has no {symbol}")
    assert loaded
