"""Known data files: their checksums, and where they can be had."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file that can be fetched: name, SHA-256 as it is fetched, and sources, official ones first."""

    name: str
    sha256: str
    sources: tuple[str, ...]

    @property
    def urls(self) -> list[str]:
        """The addresses of the file."""
        return [f"{source}/{self.name}" for source in self.sources]


_LIBSVM = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary",)
_MNIST = (
    "http://yann.lecun.com/exdb/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)

FILES: dict[str, tuple[File, ...]] = {
    "a9a": (
        File("a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", _LIBSVM),
        File("a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", _LIBSVM),
    ),
    "mnist": tuple(File(name, sha, _MNIST) for name, sha in zip(_IDX, _MNIST_SHA256, strict=True)),
    "fashion_mnist": tuple(File(name, sha, _FASHION) for name, sha in zip(_IDX, _FASHION_SHA256, strict=True)),
}
"""By data set."""
