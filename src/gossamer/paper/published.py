"""Where the experiments published with the paper depart from its text, all in one place.

The specs of this folder follow the text; `as_published` gives what was run for the published figures.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from gossamer.compression.layout import Layout
from gossamer.compression.sparse import Keeps, Sparse
from gossamer.spec import Spec, Table
from gossamer.streams import Draw


@dataclass(frozen=True)
class smallest_k(Keeps):
    """The published top_k: keeps the k smallest signed values, not the k of largest magnitude.

    No contraction is known of it: `alpha` is the one that was believed in.
    """

    is_deterministic = True

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Sparse:
        """Keep the smallest of each row."""
        indices = x.topk(self.kept(layout.size), dim=1, largest=False).indices.sort(dim=1).values
        return Sparse(indices, x.gather(1, indices), layout.d)


def as_published(spec: Spec) -> Spec:
    """The spec as it was run for the published figure.

    Clients start at points of their own; a9a's features are divided by ||A||_2 / (2 sqrt(N)); dithering is not divided
    by tau, so it is unbiased (but for the convolutional network's); top_k keeps the smallest values; D2 does not mix in
    its first step; the convolutional network's tracker evaluates the old model again on the new minibatch.
    """
    is_cnn = spec.problem["objective"] == "cnn"
    problem = dict(spec.problem)
    if problem["objective"] == "logistic_regression":
        problem["feature_scale"] = "published"
    methods: list[Table] = []
    for table in spec.methods:
        changed = dict(table)
        kind, _, setting = str(table.get("compressor", "")).partition(":")
        if kind == "gsgd" and not is_cnn:
            changed["compressor"] = f"qsgd:{1 << (int(setting) - 1)}"
        elif kind == "top_k":
            changed["compressor"] = smallest_k(int(setting))
        if table["name"] == "d2":
            changed["mix_first"] = False
        if table["name"] == "beer" and is_cnn:
            changed["tracker"] = "reevaluated"
        methods.append(changed)
    return replace(
        spec,
        name=f"{spec.name}, as published",
        problem=problem,
        methods=methods,
        x0=spec.x0.removeprefix("same_") if spec.x0 else None,
    )
