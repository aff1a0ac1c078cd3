"""``python -m eagle3``: the same as the console script ``eagle3``."""

from eagle3.cli import main

main()
