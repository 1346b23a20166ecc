"""The public interface changes only where somebody says so."""

import public


def test_what_is_public_is_what_is_listed():
    assert public.text() == public.LIST.read_text(), "run `python tools/public.py`, and say it in CHANGELOG.md"
