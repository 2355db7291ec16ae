"""One file per experiment tracker: each takes the record of every step."""
