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
        sys.exit(f"graft needs {package}, which is not installed: {sys.executable} -m pip install typer rich")
    run()


if __name__ == "__main__":
    main()
