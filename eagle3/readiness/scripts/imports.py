"""Import modules in order and say of each how it went, as a line of its own; end with the first that fails.

``{"modules"}`` → ``{"name","ok","version","seconds","error","where"}`` a module. What the first failure left half imported would
colour the next answers, so whoever asks starts anew behind it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Dict


def main() -> None:
    """Import the modules; the interpreter's own words where one fails."""
    sys.path.pop(0)
    for module in json.loads(sys.argv[1])["modules"]:
        answer = tried(module)
        sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")
        sys.stdout.flush()
        if not answer["ok"]:
            return


def tried(module: str) -> Dict[str, Any]:
    """How the import of one module goes here."""
    begun = time.monotonic()
    answer: Dict[str, Any] = {"name": module, "ok": True, "version": "", "error": "", "where": ""}
    try:
        __import__(module)
        answer["version"] = str(getattr(sys.modules[module.partition(".")[0]], "__version__", ""))
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, SystemExit too, is what was asked for
        answer["ok"] = False
        root: BaseException = error
        while root.__cause__ is not None:  # transformers tells "could not import PreTrainedModel" and hides why behind it
            root = root.__cause__
        answer["error"] = _said(root) if root is error else f"{_said(root)} (told as {_said(error)})"
        trace = root.__traceback__
        while trace is not None:
            answer["where"] = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
    answer["seconds"] = time.monotonic() - begun
    return answer


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


if __name__ == "__main__":
    main()
