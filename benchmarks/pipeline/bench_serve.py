"""``vllm bench serve``, whose command line asks for a distribution of the name that the CPU build has not."""

from __future__ import annotations

import argparse

from vllm.benchmarks import serve


def run() -> None:
    """Parse as the command does, and measure."""
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    run()
