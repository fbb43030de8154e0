"""The ROCm that wheels are built against: where it comes from, and what it says of itself."""
