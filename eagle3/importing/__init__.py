"""Runs made of hidden states that were extracted elsewhere: by speculators' own command, or by the shares of one run."""
