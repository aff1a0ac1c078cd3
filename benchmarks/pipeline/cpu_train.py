"""``speculators train`` where there is no accelerator: the smallest shim that lets its trainer run on a CPU.

Three things, and nothing of what is measured: the device is "cpu" where it would be guessed as "cuda:0", waiting for the
accelerator does nothing, and with ``STEPS_FILE`` in the environment each step's end is noted there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from speculators.train import cli, trainer
from speculators.train.config import TrainConfig


def main(arguments: list[str]) -> None:
    """Train as the command would."""
    cpu = torch.device("cpu")
    trainer.get_local_rank = lambda: cpu
    torch.accelerator.synchronize = lambda *_: None
    steps_file = os.environ.get("STEPS_FILE")

    class Trainer(trainer.Trainer):  # type: ignore[misc]
        def setup_trainer(self) -> None:
            self.device_type = cpu.type
            super().setup_trainer()

        def train_epoch(self, epoch: int, *, step_callback: Any = None) -> None:
            def noted() -> None:
                if step_callback is not None:
                    step_callback()
                if steps_file:
                    with Path(steps_file).open("a") as file:
                        file.write(f"{time.time()}\n")

            super().train_epoch(epoch, step_callback=noted)

    cli.Trainer = Trainer
    cli.main(TrainConfig.resolve(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
