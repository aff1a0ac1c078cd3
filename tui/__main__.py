"""``python -m tui`` is the console script."""

from tui.cli import main

main()
