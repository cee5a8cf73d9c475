"""Telling whether two computations are the same, by everything in Python that they depend on."""

from torch_estimator.compile.cache_key.environment import environment_digest, machine_digest, torch_flags
from torch_estimator.compile.cache_key.roots import fingerprint
from torch_estimator.compile.cache_key.walk import Fingerprint

__all__ = ["Fingerprint", "environment_digest", "fingerprint", "machine_digest", "torch_flags"]
