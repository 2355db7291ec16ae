"""The machine: its memory, its processor, and what they were measured to do."""
