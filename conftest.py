"""Test settings: one torch thread (so that two cores are not fought over), and one hypothesis profile, deterministic unless
POSTERITY_TEST_SEED asks for other examples."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

torch.set_num_threads(1)

try:
    from hypothesis import settings
except ImportError:  # the doctests of a user's installation need none
    pass
else:
    settings.register_profile("fixed", derandomize="POSTERITY_TEST_SEED" not in os.environ, deadline=None)
    settings.load_profile("fixed")
