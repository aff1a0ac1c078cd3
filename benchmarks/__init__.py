"""Measurements against targets: ``python -m benchmarks [NAME …]``. Each part measures ours and its peer in one run."""
