"""Import one module and say how it went: ``{"module"}`` → ``{"ok","version","seconds","error","where"}``."""

import json
import sys
import time


def main() -> None:
    """Import the module; the interpreter's own words where it fails."""
    sys.path.pop(0)
    module = json.loads(sys.argv[1])["module"]
    begun = time.monotonic()
    answer = {"ok": True, "version": "", "error": "", "where": ""}
    try:
        __import__(module)
        answer["version"] = str(getattr(sys.modules[module.partition(".")[0]], "__version__", ""))
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, SystemExit too, is what was asked for
        lines = [line for line in str(error).splitlines() if line.strip()]
        answer["ok"] = False
        answer["error"] = "%s: %s" % (type(error).__name__, lines[0] if lines else "")
        trace = error.__traceback__
        while trace is not None:
            answer["where"] = "%s:%d" % (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
    answer["seconds"] = time.monotonic() - begun
    sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
