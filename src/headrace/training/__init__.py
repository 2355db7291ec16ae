"""Loop, step, optimizer, schedule, checkpoint, evaluation."""
