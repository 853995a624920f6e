"""The methods, one file each."""

from gossamer.algorithms import schedules
from gossamer.algorithms.base import Accepts, Algorithm, MethodInfo, Needs
from gossamer.algorithms.beer import BEER
from gossamer.algorithms.c_gt import CGT
from gossamer.algorithms.cedas import CEDAS
from gossamer.algorithms.centralized_sgd import CentralizedSGD
from gossamer.algorithms.choco_sgd import CHOCOSGD
from gossamer.algorithms.d2 import D2
from gossamer.algorithms.d_get import DGET
from gossamer.algorithms.deepsqueeze import DeepSqueeze
from gossamer.algorithms.destress import DESTRESS
from gossamer.algorithms.docom import DoCoM
from gossamer.algorithms.dsgd import DSGD
from gossamer.algorithms.extra import EXTRA
from gossamer.algorithms.gradient_tracking import GradientTracking
from gossamer.algorithms.gt_saga import GTSAGA
from gossamer.algorithms.gt_sarah import GTSARAH
from gossamer.algorithms.lead import LEAD
from gossamer.algorithms.motef import MoTEF
from gossamer.algorithms.motef_vr import MoTEFVR
from gossamer.algorithms.nids import NIDS
from gossamer.algorithms.porter import PORTER
from gossamer.algorithms.round import Round, Samples
from gossamer.algorithms.squarm_sgd import SQuARMSGD
from gossamer.algorithms.surrogate import Surrogate

__all__ = [
    "BEER",
    "CEDAS",
    "CGT",
    "CHOCOSGD",
    "D2",
    "DESTRESS",
    "DGET",
    "DSGD",
    "EXTRA",
    "GTSAGA",
    "GTSARAH",
    "LEAD",
    "NIDS",
    "PORTER",
    "Accepts",
    "Algorithm",
    "CentralizedSGD",
    "DeepSqueeze",
    "DoCoM",
    "GradientTracking",
    "MethodInfo",
    "MoTEF",
    "MoTEFVR",
    "Needs",
    "Round",
    "SQuARMSGD",
    "Samples",
    "Surrogate",
    "schedules",
]
