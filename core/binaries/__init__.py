"""What compiled files say of themselves, and their search paths."""
