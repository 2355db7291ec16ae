"""What a run does while its steps are taken: evaluating, saving and recording."""
