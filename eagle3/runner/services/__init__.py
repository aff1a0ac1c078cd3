"""Serving units of the container: found, told apart, stopped for a run by consent, and set going again whatever happens."""
