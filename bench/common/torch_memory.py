"""What libtorch's allocator gives in a step of a rival in Python; needs torch."""

import torch


def peak_of(step):
    """Of the bytes that were allocated since the step's beginning, the most at one time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most
