"""`python -m torchgraft` is `graft`."""

from torchgraft.cli import main

if __name__ == "__main__":
    main()
