"""Plots before they are drawn: what part of which series is looked at, and how. Pure; no Textual, no plotext."""
