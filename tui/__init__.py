"""The operator's terminal."""
