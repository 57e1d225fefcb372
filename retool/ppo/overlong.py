"""The soft punishment of overlong trajectories: the reward falls over the last tokens of the budget.

With a budget of L tokens, of which the last B are the buffer, a trajectory of n tokens gets

    0                            n ≤ L - B
    -penalty · (n - (L - B)) / B   above it, and -penalty at most

Equation 13 of DAPO (Yu et al. 2025, arXiv 2503.14476), there with penalty = 1.
"""


def overlong_penalty(tokens: int, *, budget: int, buffer: int, penalty: float) -> float:
    """What is added to the reward of a trajectory of `tokens` tokens: 0 or below. A `buffer` of 0 punishes nothing."""
    beyond = tokens - (budget - buffer)
    if buffer == 0 or beyond <= 0:
        return 0.0
    return -penalty * min(beyond / buffer, 1.0)
