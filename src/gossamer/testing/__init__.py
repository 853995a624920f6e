"""The conformance suite: what every method and every compressor must do, for other people's components too.

    from gossamer.testing import check_compressor, check_method

    def test_mine():
        check_compressor(my_compressor(bits=3))
        check_method(MyMethod(lr=0.1))

Each check raises an AssertionError that says what does not hold. A class is tried with each of its `examples`.
"""

from gossamer.testing.compressors import check_compressor
from gossamer.testing.looped import loopback
from gossamer.testing.methods import check_method, check_method_on

__all__ = ["check_compressor", "check_method", "check_method_on", "loopback"]
