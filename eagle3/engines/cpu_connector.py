"""vLLM's own connector for hidden states, made to run where there is no GPU as well.

``ExampleHiddenStatesConnector`` opens CUDA streams on the first request, which ends the engine on a CPU after every
health check had passed. Here the copy is a plain one when the cache lies in host memory; on a GPU the parent's way is
taken. This file stands alone: it is put by itself on the server's PYTHONPATH, whose environment may lack ``eagle3``.
Loaded with ``kv_connector_module_path`` in ``--kv-transfer-config``.
"""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class _Done:
    """Stands for the CUDA event of a copy that is complete by the time anyone asks."""

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):
    """Writes ``hidden_states`` [tokens, layers, hidden] and ``token_ids`` [tokens] of each request to a safetensors file."""

    def _submit_async_write(self, pending: Any) -> None:
        if self._kv_cache is None or self._kv_cache.device.type != "cpu":
            super()._submit_async_write(pending)
            return
        if not self._is_tp_rank_zero:
            return
        if pending.req_id in self._req_futures:
            raise RuntimeError(f"request {pending.req_id} is being written already")
        # No stream to wait for: on a CPU the forward pass is over when this is called. Indexing makes the copy, which
        # the blocks' next owner cannot touch.
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        tensors = {
            "hidden_states": extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0]).contiguous(),
            "token_ids": pending.token_ids.clone(),
        }
        path = Path(pending.filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is None and self.use_lock:
            lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        done = _Done()
        future = self._executor.submit(self._write_tensors, tensors, done, pending.filename, lock)
        self._req_copy_events[pending.req_id] = done
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))
