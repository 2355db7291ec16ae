"""Loaders. Each file has `batches(corpus, batch_size, length, num_workers)`, an endless iterator of shuffled windows of
length + 1 tokens (or of inputs and targets), and, if it needs a format of its own, `prepare(corpus, length)`."""
