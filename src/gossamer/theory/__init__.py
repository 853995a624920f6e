"""The theory of BEER: certified and practical steps, predictions, and checks of runs against the proof."""

from gossamer.theory.certificate import Certificate, certify
from gossamer.theory.check import Checked, Finding, Measured, check_run
from gossamer.theory.constants import AbsoluteConstants, absolute_constants, theorem_gamma, theorem_steps
from gossamer.theory.predictions import bits_to, neighbourhood, rounds_to
from gossamer.theory.privacy import local_privacy
from gossamer.theory.steps import practical_steps
from gossamer.theory.system import LinearSystem, linear_system, lyapunov, lyapunov_weights
from gossamer.theory.tables import Order, Orders, orders

__all__ = [
    "AbsoluteConstants",
    "Certificate",
    "Checked",
    "Finding",
    "LinearSystem",
    "Measured",
    "Order",
    "Orders",
    "absolute_constants",
    "bits_to",
    "certify",
    "check_run",
    "linear_system",
    "local_privacy",
    "lyapunov",
    "lyapunov_weights",
    "neighbourhood",
    "orders",
    "practical_steps",
    "rounds_to",
    "theorem_gamma",
    "theorem_steps",
]
