"""``python -m eagle3.runner``, ``python runner.pyz`` and ``python eagle3/runner``: serve, supervise, and questions."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a folder: Python put the package itself on the path, and its modules would hide others
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import importlib
import json
import os
from typing import Any, Dict, List, Optional

from eagle3.runner.errors import VerbError

_CHILDREN = {
    "nvml": ("nvml", "main"),
    "nvml-details": ("facts.nvml", "main"),
    "xid": ("nvml", "watch_main"),
    "deliver": ("deliver", "main"),
    "logsearch": ("logsearch", "main"),
}
"""What the runner starts of itself, to be killed where it hangs: no arguments, JSON in and out. Each is imported only
where it runs: an HTTP client costs every helper's start."""

# Each command imports what it needs: the child that asks the GPUs starts with every probe.


def main(argv: Optional[List[str]] = None) -> int:
    """The runner's command line. Exit codes: 0 fine, 1 it failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="runner", description="Starts, watches, stops and describes runs in this container.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("serve", help="answer requests on stdin until it closes")
    add.add_argument("--marker", default="", help="what every line of an answer begins with")
    add.add_argument("--packed", action="store_true", help="answer in compressed frames instead of lines")
    for name, text in (("probe", "what Overview shows, as JSON"), ("list", "the runs, as JSON")):
        add = commands.add_parser(name, help=text)
        add.add_argument("workspace", nargs="?", default="~/eagle3")
    commands.add_parser("gpu", help="the GPUs, as JSON")
    for name in _CHILDREN:
        commands.add_parser(name, help=argparse.SUPPRESS)
    add = commands.add_parser("supervise", help="watch over one attempt of a run")
    add.add_argument("run_dir", type=Path)
    add.add_argument("--attempt", type=int)
    add.add_argument("--actor", default="")
    add.add_argument("--foreground", action="store_true", help="stay in front (the default without --detach)")
    add.add_argument("--detach", action="store_true", help=argparse.SUPPRESS)
    add.add_argument("--ack-fd", type=int, help=argparse.SUPPRESS)
    add.add_argument("--secret-fd", type=int, help=argparse.SUPPRESS)
    add = commands.add_parser("job", help=argparse.SUPPRESS)
    add.add_argument("folder", type=Path)
    add.add_argument("--secret-fd", type=int, required=True)
    commands.add_parser("build-env", help=argparse.SUPPRESS).add_argument("plan", type=Path)
    add = commands.add_parser("keep", help=argparse.SUPPRESS)
    add.add_argument("mark")
    add.add_argument("--fd", type=int, required=True)
    add = commands.add_parser("end", help=argparse.SUPPRESS)
    add.add_argument("run_dir", type=Path)
    add.add_argument("--attempt", type=int, required=True)
    add.add_argument("--grace-s", type=float)
    add = commands.add_parser("settle", help=argparse.SUPPRESS)
    add.add_argument("run_dir", type=Path)
    add.add_argument("--attempt", type=int, required=True)
    add = commands.add_parser("restore", help=argparse.SUPPRESS)
    add.add_argument("run_dir", type=Path)
    add.add_argument("--actor", default="")
    add.add_argument("--again", action="store_true")
    options = parser.parse_args(argv)
    try:
        return _run(options)
    except VerbError as error:
        sys.stderr.write(f"{error.text} {error.remedy}".strip() + "\n")
        return 2 if error.code == "usage" else 1


def _run(options: argparse.Namespace) -> int:
    if options.command == "serve":
        if options.packed:  # a console's helper: its first probe comes with the greeting
            from eagle3.runner import gpu

            gpu.ask_ahead()
        from eagle3.runner import serve

        return serve.main(options.marker, options.packed)
    if options.command in _CHILDREN:
        module, function = _CHILDREN[options.command]
        return int(getattr(importlib.import_module(f"eagle3.runner.{module}"), function)())
    if options.command == "supervise":
        return _supervise(options)
    if options.command == "job":
        from eagle3.runner import claims, detach, jobs

        detach.leave()
        return jobs.watch(options.folder.resolve(), claims.read_secrets(options.secret_fd))
    if options.command == "keep":
        from eagle3.runner import detach, keeper

        detach.leave()
        return keeper.keep(options.mark, options.fd)
    if options.command == "build-env":
        from eagle3.runner import buildenv

        return buildenv.build(options.plan)
    if options.command == "end":
        from eagle3.runner import detach, stop

        detach.leave()
        stop.end_unsupervised(options.run_dir.resolve(), options.attempt, options.grace_s)
        return 0
    if options.command == "settle":
        from eagle3.runner import detach, watch

        detach.leave()
        watch.settle(options.run_dir.resolve(), options.attempt, {})
        return 0
    if options.command == "restore":
        from eagle3.runner import detach, events
        from eagle3.runner.services import restoring

        detach.leave()
        restoring.restore(options.run_dir.resolve(), options.actor or events.SUPERVISOR, again=options.again)
        return 0
    from eagle3.runner import verbs

    args: Dict[str, Any] = {} if options.command == "gpu" else {"workspace": options.workspace}
    sys.stdout.write(json.dumps(verbs.handle(options.command, args), indent=1) + "\n")
    return 0


def _supervise(options: argparse.Namespace) -> int:
    from eagle3.runner import claims, detach, supervise

    descriptors = [fd for fd in (options.ack_fd, options.secret_fd) if fd is not None]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # for us, not for the worker
    if options.detach:
        detach.leave()
    run_dir = options.run_dir.resolve()
    secrets = claims.read_secrets(options.secret_fd) if options.secret_fd is not None else claims.secrets_of_environment(run_dir)
    attempt = options.attempt if options.attempt is not None else claims.claim_next(run_dir)

    def started() -> None:
        if options.ack_fd is not None:
            os.close(options.ack_fd)

    return supervise.Supervisor(run_dir, attempt, secrets=secrets, actor=options.actor).run(started)


if __name__ == "__main__":
    sys.exit(main())
