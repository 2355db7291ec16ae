"""Architectures, one file each, and what they share: configuration, counts, layers and the loss."""
