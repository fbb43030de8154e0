"""TheRock, the system that this project follows: its own functions are asked, and compared with ours."""
