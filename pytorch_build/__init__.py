"""PyTorch for AMD GPUs: refs, sources, wheels, checks and tests."""
