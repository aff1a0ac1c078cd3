"""``python -m tui`` is the console script."""

from tui.start import main

main()
