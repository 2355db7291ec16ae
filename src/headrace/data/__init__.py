"""Text → tokens → batches. NumPy out; never imports torch or JAX."""
