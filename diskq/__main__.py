"""`python -m diskq`: the `diskq` command."""

from diskq.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
