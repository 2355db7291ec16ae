"""The ways in which a step may be computed: which there are, and the memory that each of them takes."""
