"""`python -m torchgraft` is `graft`."""

import sys


def main() -> None:
    """Runs the command line; ends with one line where a package is missing that it stands on."""
    try:
        from torchgraft.cli import main as run
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        advice = f"{sys.executable} -m pip install typer rich"
        print(f"graft needs {package}, which is not installed: {advice}", file=sys.stderr)
        # As MISSING_EXTRA in cli/shared.py, which cannot be imported then.
        sys.exit(3)
    run()


if __name__ == "__main__":
    main()
