"""What to paste: the code, or the spec file, of a way of training with its steps."""

import json
from dataclasses import dataclass

from gossamer.runtime.planning.progress import Differing, family, fitted
from gossamer.runtime.planning.ways import NAMES, Way

_OPTIMIZERS = {"SGD": "SGD", "momentum": "SGD", "Adam": "Adam"}
_CLASSES = {"choco_sgd": "gs.CHOCOSGD", "beer": "gs.BEER", "motef": "gs.algorithms.MoTEF"}
_CLASSES |= {"compressed_kgt": "gs.algorithms.CompressedKGT", "dsgd": "gs.DSGD"}


@dataclass(frozen=True)
class Steps:
    """Step sizes to begin with.

    Args:
        inner: The optimiser of local steps: "SGD", "momentum", "Adam", or empty if the method takes gradients.
        lr: Of that optimiser, or of the method.
        outer_lr: What multiplies the sum of local steps.
        outer_momentum: Nesterov momentum of these sums.
        gamma: The mixing step of Gossamer's methods.
    """

    inner: str
    lr: float
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    gamma: float | None = None


def steps_of(way: Way, differing: Differing, gamma: float | None) -> Steps:
    """The steps that won most searches of such ways; `gamma` is the formula's, for operators that were not searched."""
    known = fitted().winners
    found = known.get(family(way, differing), known.get(family(way, None)))
    if found is None:
        inner = "" if way.method in ("BEER", "MoTEF") and way.steps == 1 else "SGD" if way.is_tracking else "Adam"
        return Steps(inner, 0.1 if inner != "Adam" else 1e-3, gamma=gamma)
    numbers = {name: float(value) for name, value in found.items() if name != "inner"}
    return Steps(str(found["inner"]), **numbers)


def code(way: Way, steps: Steps, graph: str | None, hosts: int) -> str:
    """Python for each host's process; `graph` is as in spec files, or None for a network of one's own."""
    if way.kind == "ddp":
        return _ddp(way, steps)
    inner = f"inner = {_optimizer(steps)}" if steps.inner else ""
    if way.kind == "all-reduce":
        return _all_reduce(way, steps, inner)
    given = [f"lr={steps.outer_lr if steps.inner else steps.lr:g}"]
    if steps.gamma is not None:
        given += [f"gamma={steps.gamma:g}", f"compressor={_operator(way)}"]
    given += [f"{name}={value!r}" for name, value in way.settings.items()]
    more = [f'codec="{way.codec}"']
    if steps.inner:
        more = ["inner=inner", f"every={way.steps}", *more]
        more += [f"outer_momentum={steps.outer_momentum:g}"] if steps.outer_momentum else []
    lines = [
        "import torch",
        "import gossamer as gs",
        "",
        f"mixing = {_mixing(graph, hosts)}",
        *([inner] if inner else []),
        f"method = {_CLASSES[NAMES[way.method]]}({', '.join(given)})",
        f"optimizer = gs.DecentralizedOptimizer(model.parameters(), method, mixing, {', '.join(more)})",
        "# loss.backward(); optimizer.step()   in every step, on every host",
    ]
    return "\n".join(lines)


def spec(way: Way, steps: Steps, graph: str, hosts: int, rounds: int, batch: int, module: str | None) -> str:
    """A spec file for `gossamer run` and `gossamer launch`, of one of Gossamer's methods."""
    problem = [f'objective = "module"\nmodule = "{module}"'] if module else ['objective = "one_hidden_layer"']
    name = NAMES.get(way.method, "diloco")
    method = [f'name = "{name}"', f"lr = {steps.outer_lr if steps.inner else steps.lr!r}"]
    if steps.gamma is not None:
        method += [f"gamma = {steps.gamma!r}", f'compressor = "{way.compressor}"']
    method += [f"{name} = {json.dumps(value)}" for name, value in way.settings.items()]
    method += [] if name != "diloco" else [f"momentum = {steps.outer_momentum!r}"]
    parts = [
        f'name = "planned: {way.name}"\nrounds = {rounds}\nbatch_size = {batch}\ncodec = "{way.codec}"',
        "\n".join(["[problem]", *problem, 'data = "digits"  # yours', f"clients = {hosts}"]),
        f'[graph]\nname = "{graph}"',
        "\n".join(["[[methods]]", *method]),
    ]
    if steps.inner:
        local = [f'optimizer = "{_OPTIMIZERS[steps.inner]}"', f"steps = {way.steps}", f"lr = {steps.lr!r}"]
        local += ["momentum = 0.9"] if steps.inner == "momentum" else []
        local += [f"outer_momentum = {steps.outer_momentum!r}"] if steps.outer_momentum and name != "diloco" else []
        parts.insert(3, "\n".join(["[local]", *local]))
    return "\n\n".join(parts) + "\n"


def _optimizer(steps: Steps) -> str:
    more = ", momentum=0.9" if steps.inner == "momentum" else ""
    return f"torch.optim.{_OPTIMIZERS[steps.inner]}(model.parameters(), lr={steps.lr:g}{more})"


def _operator(way: Way) -> str:
    """The operator as Python writes it: `gs.blockwise(gs.gsgd(2), 64)`."""
    names = way.compressor.split(":")
    if names[0] == "blockwise":
        bits, size = names[2].split(",")
        return f"gs.blockwise(gs.{names[1]}({bits}), {size})"
    return f"gs.top_k(fraction={names[1]})" if names[0] == "top_k" else f"gs.{names[0]}({', '.join(names[1:])})"


def _mixing(graph: str | None, hosts: int) -> str:
    if graph is None:
        return "...  # yours"
    if graph == "ring":
        return f"gs.mixing_matrix(gs.ring({hosts}))"
    return f'gs.mixing_matrix(gs.topology.graphs.build_graph("{graph}", {hosts}))'


def _ddp(way: Way, steps: Steps) -> str:
    hooks = "from torch.distributed.algorithms.ddp_comm_hooks import "
    lines = ["import torch", "from torch.nn.parallel import DistributedDataParallel"]
    if way.rank:
        state = f"powerSGD_hook.PowerSGDState(None, matrix_approximation_rank={way.rank})"
        lines += [f"{hooks}powerSGD_hook", "", "model = DistributedDataParallel(model)"]
        lines.append(f"model.register_comm_hook({state}, powerSGD_hook.powerSGD_hook)")
    elif way.hook:
        lines += [f"{hooks}default_hooks", "", "model = DistributedDataParallel(model)"]
        lines.append("model.register_comm_hook(None, default_hooks.fp16_compress_hook)")
    else:
        lines += ["", "model = DistributedDataParallel(model)"]
    return "\n".join([*lines, f"optimizer = {_optimizer(steps)}"])


def _all_reduce(way: Way, steps: Steps, inner: str) -> str:
    return "\n".join(
        [
            "import torch",
            "import torch.distributed as dist",
            "from torch.nn.utils import parameters_to_vector, vector_to_parameters",
            "",
            inner,
            "x = parameters_to_vector(model.parameters()).detach()",
            "momentum = torch.zeros_like(x)",
            f"# after every {way.steps} steps of `inner`:",
            "mean = parameters_to_vector(model.parameters()).detach().clone()",
            "dist.all_reduce(mean)",
            "delta = x - mean / dist.get_world_size()",
            f"momentum = {steps.outer_momentum:g} * momentum + delta",
            f"x = x - {steps.outer_lr:g} * (delta + {steps.outer_momentum:g} * momentum)",
            "vector_to_parameters(x, model.parameters())",
        ]
    )
