"""Logs eight figures a second to a W&B run, offline. Runs in the peers' environment, until it is killed."""

import random
import time

import wandb  # type: ignore[import-not-found]

run = wandb.init(project="console", settings=wandb.Settings(x_disable_stats=True, console="off", silent=True))
print(run.dir, flush=True)
draw = random.Random(1)
while True:
    acc = {f"acc_{k}": draw.random() for k in range(3)}
    run.log({"loss": 4 + draw.random(), "lr": 1e-3, "grad_norm": 1.0, "tok_s": 300 + draw.random(), "accept_len": 1.2, **acc})
    time.sleep(1.0)
