"""Models that somebody else trained: their files, their weights, and their tokenizer."""
