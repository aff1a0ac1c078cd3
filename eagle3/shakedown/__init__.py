"""A shakedown done: its prompts chosen, its run started, killed once and resumed, and what it has left read. ``core.shakedown``
says what is to be proved."""
