"""Headless package: everything that runs in the GPU container. Importing it costs nothing."""

__version__ = "0.1.0"
