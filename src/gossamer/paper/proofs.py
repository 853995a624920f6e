"""BEER's proof on runs with certified steps: which experiments, and what each must obey.

Full gradients with a deterministic compressor, where every round must obey; full gradients with a random one, where the
mean over 30 seeds must; and minibatches of 1 to 1,000 rows. On the complete graph certified steps are large enough for
the models to move; on a ring they are a thousand times smaller.
"""

from collections.abc import Sequence
from dataclasses import replace

from gossamer.paper.figures import Job
from gossamer.spec import Spec, Table

CLIENTS = 10
SEEDS = 30
BATCHES = (1, 10, 100, 1000)
_PROBLEMS: dict[str, Table] = {
    "quadratics": {"objective": "quadratic"},
    "sine-pl": {"objective": "sine_pl"},
    "a9a": {"objective": "logistic_regression", "data": "a9a", "nonconvex": 0.05, "feature_scale": "published"},
}
_CONVEX = _PROBLEMS["a9a"] | {"nonconvex": 0.0, "l2": 0.1}
_ROUNDS = {"a9a": 200}  # where a round takes longest; elsewhere
_MOST_ROUNDS = 1000
_NOISY_ROUNDS, _NOISY_SEEDS = 300, 10
_EMBEDDED, _EMBEDDED_BATCH = "breast_cancer", 40  # whose clients have 45 rows or more


def jobs(seeds: int = SEEDS) -> list[Job]:
    """All of them; `seeds` for those with a random compressor."""
    made = []
    for name, problem in _PROBLEMS.items():
        rounds = _ROUNDS.get(name, _MOST_ROUNDS)
        for graph in ("complete", "ring"):
            for compressor, several in (("top_k:0.5", [0]), ("gsgd:5", range(seeds))):
                made.append(_job(f"{name}, {graph}, {compressor}", problem, graph, compressor, rounds, several))
    for theorem, problem in (("4.2", _PROBLEMS["a9a"]), ("4.4", _CONVEX)):
        several = range(min(seeds, _NOISY_SEEDS))
        made += [_noisy(f"theorem {theorem}, a9a", problem, batch, several) for batch in BATCHES]
    return made


def rehearsals(seeds: int) -> list[Job]:
    """The same in seconds, on data that is there."""
    made = []
    for job in jobs(min(seeds, 5)):
        problem = job.spec.problem | ({"data": _EMBEDDED} if "data" in job.spec.problem else {})
        name, batch = job.spec.name.replace("a9a", _EMBEDDED), job.spec.batch_size
        spec = replace(job.spec, name=name, problem=problem, rounds=30)
        if batch is None or batch <= _EMBEDDED_BATCH:
            made.append(Job(job.name.replace("a9a", "embedded"), spec))
    return made


def _noisy(name: str, problem: Table, batch: int, seeds: Sequence[int]) -> Job:
    job = _job(f"{name}, batch {batch:,}", problem, "complete", "gsgd:5", _NOISY_ROUNDS, seeds)
    # At the edge of what is certified, the weights of the noise are huge.
    tables = [job.spec.methods[0] | {"lr": "certified:0.5"}]
    return Job(job.name, replace(job.spec, batch_size=batch, methods=tables))


def _job(name: str, problem: Table, graph: str, compressor: str, rounds: int, seeds: Sequence[int]) -> Job:
    table = {"name": "beer", "label": "BEER", "lr": "certified", "gamma": "certified", "compressor": compressor}
    spec = Spec(
        rounds=rounds,
        problem=problem | {"clients": CLIENTS, "dtype": "float64"},
        graph={"name": graph},
        methods=[table],
        name=name,
        seeds=list(seeds),
        eval_every=1,
        measures=["omegas"],
    )
    return Job("proof-" + "".join(c if c.isalnum() else "-" for c in name.replace(",", "")), spec)
