"""Shapes of networks, their counts, and the networks themselves."""
