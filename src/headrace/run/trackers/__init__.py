"""One file per experiment tracker; each is told of every step in a thread beside training."""
