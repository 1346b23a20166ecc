"""Makes an operator that somebody else registered look to the checks like one that was declared.

Nothing is registered for it: its schema, fake kernel and gradient are its own and are checked; the reference comes from
whoever asks.
"""
