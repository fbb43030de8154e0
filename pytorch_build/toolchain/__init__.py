"""What builds link or ship besides ROCm and machines do not have: pinned, provided by `nox -s prepare`."""
