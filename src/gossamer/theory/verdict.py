"""The verdicts on an inequality or a claim."""

from typing import Literal, get_args

Verdict = Literal["holds", "does not hold", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
