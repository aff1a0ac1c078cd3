"""Readiness: what must hold before a run is worth starting. Probes gather facts; only this package judges them.

Pure: facts and a spec in, a report out. ``wants`` says what to ask, ``checks`` hold one module a group, ``judge`` runs them.
"""
