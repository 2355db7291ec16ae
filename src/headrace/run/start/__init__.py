"""How a run begins from a model that there is: finding it, and settling shape, tokenizer and weights by it."""
