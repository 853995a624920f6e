"""Known data files: their checksums and download addresses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file that can be downloaded."""

    name: str
    sha256: str
    """Checksum of the file as served, which a download must match."""
    sources: tuple[str, ...]
    """The official source first."""
    unpacked_sha256: str | None = None
    """Checksum of its content, if the file is compressed."""

    @property
    def content_sha256(self) -> str:
        """Checksum of the uncompressed content."""
        return self.unpacked_sha256 or self.sha256

    @property
    def urls(self) -> list[str]:
        """The download addresses, in order of preference."""
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
# Of the unpacked idx files. For Fashion-MNIST they were computed from the files that Debian's package
# dataset-fashion-mnist ships, whose gzip headers differ from the published ones.
_MNIST_CONTENT = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION_CONTENT = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)


def _idx(files: tuple[str, ...], sources: tuple[str, ...], contents: tuple[str, ...]) -> tuple[File, ...]:
    each = zip(_IDX, files, contents, strict=True)
    return tuple(File(name, sha256, sources, content) for name, sha256, content in each)


FILES: dict[str, tuple[File, ...]] = {
    "a9a": (
        File("a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", _LIBSVM),
        File("a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", _LIBSVM),
    ),
    "mnist": _idx(_MNIST_SHA256, _MNIST, _MNIST_CONTENT),
    "fashion_mnist": _idx(_FASHION_SHA256, _FASHION, _FASHION_CONTENT),
}
"""By data set."""
