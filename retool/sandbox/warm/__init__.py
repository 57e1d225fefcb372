"""Groundwork of warm, isolated interpreters on this machine; no tier uses it yet.

All of it runs in processes of their own, on the standard library alone: `launcher`, with `kernel` (system calls),
`rootfs` (a root of its own), `cgroup`, `landlock`, `seccomp` and `settings`.
"""
