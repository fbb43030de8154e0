# Keeps the contract of pytorch's torch.nn: a package with functions.
from torch.nn import functional
