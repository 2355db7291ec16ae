"""A trained model behind OpenAI's HTTP interface for completions, and a page to play with it."""
