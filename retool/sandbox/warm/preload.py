"""What a fork server imports and runs once, so that no call has to.

`warm_up`: imports modules, runs a few typical programs with them, and settles the memory. Caches that it fills cannot be
seen by model code, other than by their speed.
"""

import contextlib
import gc
import importlib
import os
import site

from retool.sandbox.warm import kernel

STANDARD = [
    "atexit",
    "bisect",
    "cmath",
    "collections",
    "copy",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "heapq",
    "io",
    "itertools",
    "json",
    "linecache",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "textwrap",
    "threading",
    "time",
    "traceback",
    "types",
    "typing",
]

_SYMPY = """
from sympy import *
x, y, z, t = symbols("x y z t")
n, k = symbols("n k", integer=True, positive=True)
solve(x**2 - 7*x + 10, x); solve(x**3 - 2*x - 4, x); solve([x + 2*y - 5, x*y - 2], [x, y])
solve(Eq(2*x + 3, 11), x); solve(sqrt(x + 3) - x + 3, x); solve(x**2 + 1 > 3*x, x)
solve([x + y + z - 6, x - y + z - 2, 2*x + y - z - 1], [x, y, z]); solve(2**x - 8, x)
linsolve([x + y - 3, x - y - 1], x, y); nsolve(cos(x) - x, x, 1); solveset(x**2 - 4, x, S.Reals)
solve(x**4 - 5*x**2 + 4, x); Poly(x**3 - x, x).nroots(); roots(x**3 - 6*x**2 + 11*x - 6, x)
simplify((x**2 - 1)/(x - 1) + sin(y)**2 + cos(y)**2); simplify(sqrt(8) + 1/sqrt(2)); radsimp(1/(1 + sqrt(2)))
factor(x**4 - 16); expand((x + y)**5); apart(1/(x**2 - 1), x); together(1/x + 1/y); cancel((x**2 - x)/x)
trigsimp(2*sin(x)*cos(x)); nsimplify(0.75); Poly(x**5 - x + 1, x).all_coeffs(); gcd(x**2 - 1, x - 1)
diff(sin(x)*exp(2*x), x); integrate(x**2*exp(x), x); integrate(1/(1 + x**2), (x, 0, 1)); limit(sin(x)/x, x, 0)
series(exp(x), x, 0, 4); summation(k**2, (k, 1, n)); summation(1/(k*(k + 1)), (k, 1, oo)); product(k, (k, 1, 6))
factorint(360360); divisors(5040); totient(100); isprime(10**9 + 7); list(primerange(2, 60)); nextprime(100)
gcd(84, 36); lcm(4, 6); mod_inverse(3, 11); binomial(20, 10); factorial(20); fibonacci(30); igcdex(12, 18)
Matrix([[1, 2], [3, 5]]).inv(); Matrix([[2, 1], [1, 2]]).eigenvals(); Matrix([[1, 2, 3], [4, 5, 6], [7, 8, 10]]).det()
print(N(pi, 20), Rational(3, 4) + Rational(5, 6), sqrt(50), latex(x**2/2), (pi + E).evalf(), floor(Rational(7, 2)))
Point(0, 0).distance(Point(3, 4)); Sum(k, (k, 1, 10)).doit(); lambdify(x, x**2 + sin(x))(2.0)
f = Function("f"); Abs(-3); Piecewise((x, x > 0), (0, True)).subs(x, 2); ceiling(2.5); im(2 + 3*I); I**2
str(Matrix([[x, y]])); solve(sin(x) - Rational(1, 2), x); solve(log(x) - 2, x); solve(Abs(x - 2) - 3, x)
"""
_NUMPY = """
import numpy as np
a = np.array([[2.0, 1.0], [1.0, 3.0]]); b = np.arange(12).reshape(3, 4)
np.linalg.det(a); np.linalg.inv(a); np.linalg.solve(a, [1, 2]); np.linalg.eig(a); np.linalg.matrix_power(a, 3)
np.roots([1, -6, 11, -6]); np.polyfit([0, 1, 2], [1, 3, 7], 2); b.sum(axis=0); b @ b.T; np.linspace(0, 1, 5).mean()
str(a); repr(b); np.sort(b, axis=1); np.unique(b % 5); np.cumsum(b); np.gcd(12, 18); np.isclose(0.1 + 0.2, 0.3)
"""
_STANDARD = """
import json, re, math
from fractions import Fraction
from decimal import Decimal
from collections import Counter, defaultdict, deque
from itertools import combinations, permutations, product
str(Fraction(3, 4) + Fraction(1, 6)), str(Decimal(2).sqrt()), Counter("hello").most_common(), re.sub(r"(a+)b", "c", "aab")
json.loads(json.dumps({"a": [1, 2.5, None]})), math.gcd(12, 18), sum(1 for _ in combinations(range(6), 3))
"""
_PROGRAMS = {"": _STANDARD, "numpy": _NUMPY, "sympy": _SYMPY}
_ALSO = {"numpy": ("numpy.random", "numpy.linalg")}


def warm_up(modules: tuple[str, ...], *, run_programs: bool, procfs: int) -> list[str]:
    """Imports the standard modules and `modules`, runs the programs for them, and returns which could be imported."""
    for name in STANDARD:
        importlib.import_module(name)
    # `exit`, `quit`, `help`: what programs expect among the built-in names.
    site.setquit()
    site.setcopyright()
    site.sethelper()
    found = []
    for name in modules:
        # A package that the interpreter lacks is the model's to find out.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            for other in _ALSO.get(name, ()):
                importlib.import_module(other)
            found.append(name)
    if run_programs:
        for name in ("", *found):
            _run(_PROGRAMS.get(name, ""))
    gc.collect()
    gc.freeze()
    descriptor = os.open("self/maps", os.O_RDONLY, dir_fd=procfs)
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        maps = file.read()
    kernel.collapse_huge_pages(maps)
    return found


def _run(program: str) -> None:
    """Runs it statement by statement: one that a package's version does not know costs the others nothing."""
    import io

    namespace: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for line in program.strip().splitlines():
            for statement in line.split("; "):
                with contextlib.suppress(Exception):
                    exec(statement, namespace)
