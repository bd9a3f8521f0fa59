"""``dumpcmp``, and ``python -m dumpcmp`` for torchrun and for machines without scripts."""

import sys


def main() -> None:
    """Run the command; an interrupt that comes while it is still being imported ends it alike."""
    try:
        from dumpcmp.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("dumpcmp: interrupted, so there is no verdict\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
