"""``python -m dumpcmp``: the same commands, for torchrun and for machines without scripts."""

from dumpcmp.cli import main

if __name__ == "__main__":
    main()
