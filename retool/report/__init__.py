"""Statistics, and the page that shows a run. Public: `Estimate`, `average_at_k`, `pass_at_k`, `majority_at_k`."""

from retool.report.statistics import Estimate, average_at_k, majority_at_k, pass_at_k, proportion

__all__ = ["Estimate", "average_at_k", "majority_at_k", "pass_at_k", "proportion"]
