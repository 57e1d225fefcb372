"""Sandboxes on this machine. `process`: a fresh interpreter a call, resource limits, an empty environment."""
