"""``python -m eagle3.readiness --wants FILE``: the deep probes, one JSON line a section on stdout."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from eagle3.readiness import probe, sections


def main(argv: Optional[List[str]] = None) -> int:
    """The command line. Exit codes: 0 every section was asked (whatever it found), 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="eagle3 probe", description="Ask this machine what a run needs to know, thoroughly.")
    parser.add_argument("--wants", type=Path, required=True, help="JSON file that says what is wanted")
    parser.add_argument("--scratch", type=Path, help="folder for what the probes need; made, and removed at the end")
    parser.add_argument("--section", action="append", choices=sections.ORDER, help="only this one; repeatable")
    options = parser.parse_args(argv)
    try:
        wants = json.loads(options.wants.read_text(encoding="utf-8"))
        if not isinstance(wants, dict) or not isinstance(wants.get("workspace"), str):
            raise ValueError("it names no workspace")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{options.wants} does not say what is wanted: {error}.\n")
        return 2
    # A stop ends the probes by an exception, so that each puts down what it holds.
    signal.signal(signal.SIGTERM, _stopped)
    # Libraries of ours may print; the lines of the answer go to what was stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(line: Dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    scratch = options.scratch.resolve() if options.scratch else probe.scratch_folder(wants)
    probe.run(wants, emit, scratch=scratch, only=options.section or wants.get("sections") or None)
    return 0


def _stopped(*_: Any) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
