"""What `rocm-sdk test` runs: tests of this installation, not of ROCm's code."""
