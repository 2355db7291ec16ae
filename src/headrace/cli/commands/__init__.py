"""One file per command, or per two that belong together; `cli/main.py` lists them and imports the one asked for."""
