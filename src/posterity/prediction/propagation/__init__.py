"""Uncertainty in one pass: what every operation of a network does to means and variances."""
