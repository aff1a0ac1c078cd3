"""torchrun itself, with two things around it: it ends with its parent, and says in a file which rank failed first.

``python -m eagle3.training.torchrun FILE TORCHRUN-ARGUMENTS...``
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from eagle3.runner import rundir
from eagle3.training.launching import end_with_parent


def main(arguments: list[str]) -> int:
    """torchrun's exit code."""
    end_with_parent()
    file, *own = arguments
    try:
        run.main(own)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        rundir.write_json(Path(file), {"v": 1, "rank": rank, "pid": failure.pid, "code": failure.exitcode})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
