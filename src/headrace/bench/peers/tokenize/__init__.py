"""Tokenizers. Each file has `make(tokenizer_json)`, a function from pieces of text to one array of ids."""
