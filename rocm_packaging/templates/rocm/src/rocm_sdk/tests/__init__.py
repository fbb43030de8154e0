"""What `rocm-sdk test` runs: checks of this installation, not tests of ROCm's code."""
