"""retool: reinforcement learning of mathematical reasoning with a Python code interpreter in the loop."""

__version__ = "0.1.0"
