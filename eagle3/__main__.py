"""``python -m eagle3``: the same as the console script ``eagle3``."""

from eagle3.cli import main
from eagle3.stacks import register

if __name__ == "__main__":  # a data loader's worker imports this module anew and must not start the command again
    register()
    main()
