"""The machine: its hardware, what it was measured to do, and the processes that headrace runs on it."""
