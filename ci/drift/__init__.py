"""What ROCm/TheRock says of what our data says, too: read from a checkout, and never executed."""
