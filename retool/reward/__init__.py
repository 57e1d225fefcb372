"""Scoring answers: `Scorer`, `score` with a default one, and the `Verdict` they give, with its `VerdictReason`."""

from retool.reward.scorer import Scorer, score
from retool.reward.verdict import AsyncScorer, Verdict, VerdictReason

__all__ = ["AsyncScorer", "Scorer", "Verdict", "VerdictReason", "score"]
