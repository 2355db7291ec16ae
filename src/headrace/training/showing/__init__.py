"""What the network is shown of its batches while it learns: windows that grow, dropout, a part of the vocabulary."""
