"""Trainers. Each file has `train(job, report)`: the same weights, batches, AdamW and clipping; `report(loss)` after
every step. It returns how many parameters it trains."""
