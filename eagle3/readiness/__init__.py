"""Deep probes: what only the run's own environments can answer, each question in a process of its own with its own limit.

They gather facts and judge nothing; ``eagle3.core.readiness`` does. Standard library only and any Python ≥ 3.8, but for the
canary, which runs in the worker's environment; ``scripts`` are single files that run where ``eagle3`` is not installed.
"""
