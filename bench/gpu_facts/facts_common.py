"""One JSON line per fact on stdout, as facts_emit.h writes them."""
import json
import math
import statistics
import sys
import time
import traceback


def emit(part, key, value, unit=""):
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    print(json.dumps({"part": part, "key": key, "value": value, "unit": unit}), flush=True)


def note(part, key, text):
    print(json.dumps({"part": part, "key": key, "value": str(text)}), flush=True)


def item(part, name, work):
    """Runs one item; what it throws becomes a fact."""
    begin = time.perf_counter()
    try:
        work()
    except BaseException as error:  # noqa: B902
        note(part, "error." + name, (type(error).__name__ + ": " + str(error))[:500])
        traceback.print_exc(file=sys.stderr)
    emit(part, "seconds." + name, round(time.perf_counter() - begin, 2), "s")


def event_ms(torch, work, times=7, warm=2):
    """Median device milliseconds of `work`."""
    for _ in range(warm):
        work()
    result = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        result.append(begin.elapsed_time(end))
    return statistics.median(result)


def wall_ms(torch, work, times=7, warm=2):
    """Median wall milliseconds of `work` and a synchronise."""
    result = []
    for k in range(times + warm):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if k >= warm:
            result.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(result)
