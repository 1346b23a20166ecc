"""Judges a kernel that is not trusted: it runs in a process of its own, and the judge believes bytes and its own clock.

`judge` starts the process, sends it arguments that nobody could know before, and compares what comes back.
`kernel_process` is the program of that process, `frames` the bytes that go between the two, and `rights` what either
of them gives up first.
"""
