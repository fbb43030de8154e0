"""ROCm artifacts to ROCm wheels, and the `rocm_sdk` runtime package."""
