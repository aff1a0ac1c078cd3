"""The console script ``eagle3-tui``. The plainest way to say it, a HOST or --local alone, opens the console without the parser
of the command line: that takes a fifth of the time to the first picture. Everything else goes to `tui.cli`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

COMMANDS = frozenset(
    {"open", "check", "shakedown", "launch", "resume", "fork", "support", "runs", "watch", "stop", "picture"}
    | {"record", "replay", "spec", "status", "ls", "run"}
)
"""Words that are no HOST: the commands of `tui.cli`, and those it answers with advice."""


def plain_place(words: Sequence[str]) -> str | None:
    """The HOST of a command line that is only that, "" for --local, None where it says more."""
    if list(words) == ["--local"]:
        return ""
    if len(words) == 1 and words[0] and not words[0].startswith("-") and words[0] not in COMMANDS:
        return words[0]
    return None


def main() -> None:
    """Start the console, or hand over to the parser."""
    host = plain_place(sys.argv[1:])
    if host is None or None in (sys.stdin, sys.stdout, sys.stderr):
        from tui.cli import main as parse

        parse()
        return
    # Nothing that is loaded until the first picture is garbage; `tui.tidying` switches collecting on again.
    gc.disable()
    # Nobody's validation has plugins here, and to look for them reads the metadata of every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from tui.launchpad import open_console

    sys.exit(open_console([host] if host else [], local=not host, workspace="~/eagle3", python=None))


if __name__ == "__main__":
    main()
