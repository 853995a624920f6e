"""Four methods on real data sorted by label, over a ring of ten clients.

    python examples/compare_methods.py

Prints the gradient norm, the worst client's accuracy and the bits sent over one link, for each method.
"""

import gossamer as gs


def main() -> None:
    mixing = gs.mixing_matrix(gs.ring(10), weights="fdla")
    problem = gs.logistic_regression("breast_cancer", clients=10, partition="sorted", nonconvex=0.05)
    methods = [
        gs.BEER(lr=0.3, gamma=0.5, compressor=gs.gsgd(5)),
        gs.CHOCOSGD(lr=0.3, gamma=0.5, compressor=gs.gsgd(5)),
        gs.DSGD(lr=0.3),
        gs.D2(lr=0.3),
    ]
    runs = gs.sweep(methods, problem, mixing, rounds=1000, seeds=[0, 1, 2])
    last = runs.frame[runs.frame["round"] == 1000]
    print(last.groupby("method")[["grad_norm", "worst_accuracy", "bits"]].mean())


if __name__ == "__main__":
    main()
