"""The pipeline beside the packages' own commands: at equal prompts, optimizer, steps and threads, on this machine."""
