"""What the test of a small disk runs on it: an extraction that meets its floor, and somebody who makes room once it waits."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path

from eagle3.rows import write_rows
from eagle3.states.quarantine import put_aside
from tests.stages.extraction import run, sample
from tests.stages.runs import context, rows

FLOOR = 2 << 20
DEADLINE_S = 240.0


def main(place: Path) -> None:
    ctx = context(place / "run", disk_floor_bytes=FLOOR, extract__concurrency=1)
    write_rows(ctx.run_dir / "data" / "samples.jsonl", [sample(index, 300) for index in range(6)])
    least, landed = [1 << 40], [0]

    def make_room() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            least[0] = min(least[0], shutil.disk_usage(place).free)
            if any(row["kind"] == "guard-disk" for row in rows(ctx.run_dir, "events.jsonl")):
                landed[0] = len(rows(ctx.run_dir, "states/manifest.jsonl"))
                (place / "other").unlink()
                return
            time.sleep(0.002)

    helper = threading.Thread(target=make_room)
    helper.start()
    run(ctx)
    helper.join()
    told = {
        "kinds": [row["kind"] for row in rows(ctx.run_dir, "events.jsonl")],
        "manifest": [row["index"] for row in rows(ctx.run_dir, "states/manifest.jsonl")],
        "put_aside": sorted(put_aside(ctx.run_dir)),
        "landed_before": landed[0],
        "least_free_bytes": least[0],
        "floor_bytes": FLOOR,
    }
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
