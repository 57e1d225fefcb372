"""Sampling seeds: each request has its own, and only what it stands for decides it.

Contents: `request_seed`.
"""

import hashlib
import json


def request_seed(seed: int, *, step: int, problem_id: str, sample: int, request: int) -> int:
    """The seed of a trajectory's request number `request` (from 0), in [0, 2^31).

    The first four bytes of the BLAKE2b digest of the JSON list `[seed, step, problem_id, sample, request]`, without
    the sign bit: the same on every machine, in every process and in any order of requests. The shared first request
    of a group is that of sample 0.
    """
    content = json.dumps([seed, step, problem_id, sample, request]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "big") >> 1
