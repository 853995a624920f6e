"""Records on the disk, for tests of what reads them."""

import json
import math
from pathlib import Path
from typing import Any

HOSTILE = "</script><img src=x onerror=alert(1)>&amp; \u2028"
RING = {"edges": [[i, (i + 1) % 5, -0.1 if i == 2 else 0.3] for i in range(5)], "self": [0.4] * 5}
SHARES = {"labels": ["-1", "1"], "counts": [[10, 0], [10, 0], [5, 5], [0, 10], [0, 10]]}


def lines(label: Any, seed: Any = 0, rate: float = 0.05, count: int = 40, **header: Any) -> list[dict[str, Any]]:
    """A record that falls as exp(-rate t), with a little of its seed in it; 1,000 bits a round."""
    wobble = 1 + 0.1 * (seed if isinstance(seed, int) else 0)
    rows = [
        {"round": 10 * t, "packets": 10 * t, "bits": 1e4 * t, "bits_total": 5e4 * t, "bits_nominal": 8e3 * t}
        | {"seconds": 0.1 * t, "loss": 0.5 + math.exp(-rate * t), "grad_norm": wobble * math.exp(-rate * t)}
        | {"consensus": 1e-3 * math.exp(-rate * t), "accuracy": 0.9 - 0.4 * math.exp(-rate * t)}
        for t in range(count)
    ]
    told = {
        "gossamer": "0.1.0",
        "label": label,
        "seed": seed,
        "rounds": 10 * (count - 1),
        "method": {"name": str(label), "lr": 0.1, "gamma": 0.5, "compressor": "gsgd(bits=5)"},
        "problem": {"problem": "LogisticRegression", "clients": 5, "d": 10},
        "mixing": {"clients": 5, "edges": 5, "rho": 0.2, "C": 2.0},
        "device": "cpu",
        "torch": "2.13.0",
        "python": "3.11.7",
    }
    return [told | header, *rows, {"end": {"status": "finished", "round": 10 * (count - 1)}}]


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    """The lines as a file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in content))
    return path


def diverged(label: str, seed: int, reason: str) -> list[dict[str, Any]]:
    """A record that went up and away."""
    content = lines(label, seed, rate=-2.0, count=12)
    return [*content[:-1], {"end": {"status": "diverged", "round": 110, "reason": reason}}]
