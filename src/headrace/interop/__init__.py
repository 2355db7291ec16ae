"""Neighbours, one file each: headrace's batches for other frameworks, and other people's tokens for headrace."""
