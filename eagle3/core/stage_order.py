"""The names of the stages, apart from the spec: its models take a tenth of a second to load."""

STAGES = ("prepare", "regenerate", "extract", "vocabulary", "train", "evaluate", "export")
"""The stages of a run, in order."""
