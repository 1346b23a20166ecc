"""Shared parts of properties.

Several properties compile calls, transform them, change their sizes or run them on several devices; each of these is a
module here.
"""
