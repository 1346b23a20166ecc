"""The machine that this process runs on: its hardware, processes, and files of figures measured on it."""
