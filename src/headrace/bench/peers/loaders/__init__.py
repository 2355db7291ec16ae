"""Loaders. Each file has `batches(corpus, batch_size, sequence_length, num_workers)`, an endless iterator of batches of
shuffled windows of sequence_length + 1 tokens (or of inputs and targets). A loader that needs a format of its own also
has `prepare(corpus, sequence_length)`."""
