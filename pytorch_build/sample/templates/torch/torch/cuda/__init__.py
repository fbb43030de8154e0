# Keeps the contract of pytorch's torch.cuda, which also speaks for AMD GPUs.
from torch import _C


def device_count():
    return _C._cuda_getDeviceCount()


def is_available():
    return device_count() > 0


def get_arch_list():
    """The gfx targets that this torch holds code for, also on a machine without a GPU."""
    return _C._cuda_getArchFlags().split()
