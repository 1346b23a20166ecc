"""Planted bugs: small operators, each wrong in exactly one way, and the property that is meant to catch it.

A family is a folder: a correct operator, the control, and operators that are wrong in one place, each with a kernel in
a file of its name or a declaration that differs in one argument. `python tests/planted/table.py` writes down what
catches what; `tests/test_planted.py` holds that against what it finds.
"""
