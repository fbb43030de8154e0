# Keeps the contract of pytorch's torch/__config__.py: what this torch was built with, in words.
from torch import _C


def show():
    return "PyTorch built with:\n  - Build settings: " + _C._show_config() + "\n"
