"""Shows what a check found: live in a terminal, printed at the end, and as JSON.

`report` holds the results, `board` and `live` show them while jobs run, and `left_out` says which kernels did not run.
"""
