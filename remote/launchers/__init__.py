"""Ways to start a run. Each turns a RunSpec into what the runner needs of it; the run directory is the same for all."""
