"""Warm, isolated interpreters on this machine: fork servers behind namespaces, Landlock and seccomp.

In the trainer: `pool` (the sandbox), `client` (one fork server), `call` (one execution). In processes of their own, on the
standard library alone: `launcher`, `zygote` and `child`, with `kernel`, `rootfs`, `landlock`, `seccomp` and `preload`.
"""
