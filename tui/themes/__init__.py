"""Colours and style sheets."""
