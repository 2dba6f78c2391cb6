"""The public contract suite: `check_algorithm(Mine())` proves the library's promises for an algorithm of your own."""

from posterity.testing.case import Case
from posterity.testing.contract import CHECKS, check_algorithm

__all__ = ["CHECKS", "Case", "check_algorithm"]
