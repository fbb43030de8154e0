# The runtime: streams, events, memory; and the ROCm libraries that torch has to find. Skipped without a GPU.
import ctypes
import sys

import pytest
from conftest import is_miniature

pytestmark = pytest.mark.distribution("torch")

MEBIBYTE = 1 << 20

# of the HIP runtime, of a library that torch links, of one that torch opens itself
SYMBOLS = ("hipGetDeviceCount", "hipblasCreate", "amdsmi_init")


@pytest.mark.gpu
def test_the_gpu_is_of_an_architecture_that_the_wheel_has_code_for(torch):
    if not torch.version.hip:
        pytest.skip("a build without ROCm")

    architectures = [name.partition(":")[0] for name in torch.cuda.get_arch_list()]
    properties = torch.cuda.get_device_properties(0)
    assert properties.gcnArchName.partition(":")[0] in architectures


@pytest.mark.gpu
def test_streams_wait_for_each_other(torch):
    first_stream = torch.cuda.Stream()
    second_stream = torch.cuda.Stream()
    values = torch.ones(MEBIBYTE, device="cuda")

    first_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first_stream):
        for _ in range(50):
            values += 1
    second_stream.wait_stream(first_stream)
    with torch.cuda.stream(second_stream):
        doubled = values * 2
    second_stream.synchronize()

    assert doubled.eq(102).all().item()


@pytest.mark.gpu
def test_events_measure_time(torch):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    matrix = torch.randn(1024, 1024, device="cuda")

    start.record()
    matrix @ matrix
    end.record()
    end.synchronize()

    assert 0 < start.elapsed_time(end) < 60_000


@pytest.mark.gpu
def test_memory_is_counted_and_given_back(torch):
    size = 64 * MEBIBYTE
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocated_before = torch.cuda.memory_allocated()

    buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - allocated_before >= size
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total

    del buffer
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == allocated_before


@pytest.mark.gpu
def test_copies_arrive_from_pinned_memory_too(torch):
    values = torch.arange(MEBIBYTE).pin_memory()

    copy = values.to("cuda", non_blocking=True)
    torch.cuda.synchronize()

    assert torch.equal(copy.cpu(), values)


@pytest.mark.gpu
def test_too_much_memory_is_an_error_that_one_can_go_on_after(torch):
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 46, dtype=torch.uint8, device="cuda")

    assert torch.ones(2, device="cuda").sum().item() == 2


@pytest.mark.gpu
def test_random_numbers_repeat_by_seed(torch):
    torch.manual_seed(7)
    first_numbers = torch.randn(1000, device="cuda")
    torch.manual_seed(7)
    second_numbers = torch.randn(1000, device="cuda")

    assert torch.equal(first_numbers, second_numbers)
    assert abs(first_numbers.mean().item()) < 0.2


@pytest.mark.skipif(sys.platform != "linux", reason="Windows has no one table of symbols")
@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbols_of_rocm_resolve(torch, symbol):
    if not torch.version.hip:
        pytest.skip("a build without ROCm")

    is_loaded = hasattr(ctypes.CDLL(None), symbol)
    if not is_loaded and is_miniature():
        pytest.skip(f"the sample's ROCm has no {symbol}")
    assert is_loaded
