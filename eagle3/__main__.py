"""``python -m eagle3``: the same as the console script ``eagle3``."""

from eagle3.cli import main

if __name__ == "__main__":  # a data loader's worker imports this module anew and must not start the command again
    main()
