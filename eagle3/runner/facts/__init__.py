"""The light facts of a readiness sweep: gathered in one round trip, judged elsewhere. Standard library only.

``gather`` asks all sections at the same time, each with its own limit; one module a section.
"""

from eagle3.runner.facts.gather import LIMITS_S, SECTIONS, gather

__all__ = ["LIMITS_S", "SECTIONS", "gather"]
