"""The words of the expression grammar. `FUNCTIONS`, `INVERSES`, `LISTS`, `LETTERS`, `COMMANDS`."""

from types import MappingProxyType

# fmt: off
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot",
    "sinh", "cosh", "tanh", "coth", "exp", "ln", "lg", "log",
))
"""Functions of one argument; `log` may have a base."""

LETTERS = frozenset((
    r"\alpha", r"\beta", r"\gamma", r"\delta", r"\epsilon", r"\varepsilon", r"\zeta", r"\eta", r"\theta", r"\vartheta",
    r"\iota", r"\kappa", r"\lambda", r"\mu", r"\nu", r"\xi", r"\rho", r"\sigma", r"\tau", r"\upsilon", r"\phi",
    r"\varphi", r"\chi", r"\psi", r"\omega", r"\Gamma", r"\Delta", r"\Theta", r"\Lambda", r"\Xi", r"\Sigma",
    r"\Upsilon", r"\Phi", r"\Psi", r"\Omega", r"\ell",
))
"""Commands that are variables."""
# fmt: on

INVERSES = MappingProxyType({"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"})
"""What an exponent of -1 makes of a function."""

LISTS = frozenset(("max", "min", "gcd", "lcm"))
"""Functions of a bracketed list."""

COMMANDS = LETTERS | frozenset(
    f"\\{name}"
    for name in (*FUNCTIONS, *LISTS, "frac", "sqrt", "binom", "pi", "cdot", "times", "div", "circ", "overline", "text")
)
"""All commands that the grammar knows."""
