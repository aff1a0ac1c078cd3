"""One device, one matrix product and one attention, held against the same in float64 on the processor.

``{"device": "cpu" or "cuda:3"}`` → ``{"name","torch","build","capability","ops": [{"op","dtype","ok","error","max_error"}]}``.
A build of torch without this GPU's architecture, a broken driver, a card that computes nonsense: each fails here in seconds.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict


def main() -> None:
    """Print the answer."""
    sys.path.pop(0)
    import torch

    device = json.loads(sys.argv[1])["device"]
    answer: Dict[str, Any] = {
        "torch": torch.__version__,
        "build": torch.version.cuda or torch.version.hip or "cpu",
        "name": "",
        "capability": "",
    }
    if device != "cpu":
        if not torch.cuda.is_available():
            answer["error"] = f"torch {torch.__version__} ({answer['build']}) sees no GPU here"
            sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")
            return
        answer["name"] = torch.cuda.get_device_name(device)
        answer["capability"] = ".".join(str(n) for n in torch.cuda.get_device_capability(device))
        answer["architectures"] = torch.cuda.get_arch_list()
    answer["ops"] = [
        _tried("matmul", torch.float32, device, 1e-2),
        _tried("matmul", torch.bfloat16, device, 2e-1),
        _tried("attention", torch.bfloat16, device, 5e-2),
    ]
    sys.stdout.write("\n@eagle3 " + json.dumps(answer) + "\n")


def _tried(op: str, dtype: Any, device: str, tolerance: float) -> Dict[str, Any]:
    import torch

    told: Dict[str, Any] = {"op": op, "dtype": str(dtype).replace("torch.", ""), "ok": False, "error": "", "max_error": None}
    try:
        torch.manual_seed(0)
        parts = [torch.randn(2, 4, 128, 64) / 4 for _ in range(3)]
        there = [part.to(device=device, dtype=dtype) for part in parts]
        exact = [part.to(dtype).double() for part in parts]
        if op == "matmul":
            result, expected = there[0] @ there[1].transpose(-1, -2), exact[0] @ exact[1].transpose(-1, -2)
        else:
            result = torch.nn.functional.scaled_dot_product_attention(*there)
            weights = torch.softmax(exact[0] @ exact[1].transpose(-1, -2) / 8, dim=-1)
            expected = weights @ exact[2]
        if device != "cpu":
            torch.cuda.synchronize(device)
        difference = float((result.double().cpu() - expected).abs().max())
        told["max_error"] = difference if difference == difference else None
        told["ok"] = difference <= tolerance
        if not told["ok"]:
            told["error"] = f"its result is off by {difference:g}"
    except Exception as error:  # noqa: BLE001 - a driver's error of whatever class is the answer
        told["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return told


if __name__ == "__main__":
    main()
