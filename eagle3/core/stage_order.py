"""The names of the stages, apart from the spec, whose models take a tenth of a second to load: words about a run need only these."""

STAGES = ("prepare", "regenerate", "extract", "vocabulary", "train", "evaluate", "export")
"""The stages of a run, in order."""
