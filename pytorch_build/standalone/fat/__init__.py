"""Stand-alone ("fat") wheels: torch with the part of ROCm that it needs inside."""
