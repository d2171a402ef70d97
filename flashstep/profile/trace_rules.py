"""The rules of Chrome's trace format that a viewer relies on, as Google's "Trace Event Format" states them."""
from bisect import bisect_right
from collections import defaultdict
from decimal import Decimal

GRAIN = Decimal("0.002")  # microseconds: both ends of an event are rounded to nanoseconds
METADATA = {"process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index",
            "thread_name": "name", "thread_sort_index": "sort_index"}


def broken_rules(trace):
    """What is wrong with a trace read by json.load(parse_float=Decimal), as sentences."""
    wrong = []
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        wrong.append(f"displayTimeUnit is {trace['displayTimeUnit']}")
    slices, flows = defaultdict(list), defaultdict(list)
    for event in trace["traceEvents"]:
        phase = event.get("ph")
        if phase not in ("X", "M", "i", "s", "t", "f"):
            wrong.append(f"a phase that no profiler of ours writes: {event}")
        elif not {"name", "pid", "tid", "ts"} <= set(event) or not isinstance(event["ts"], (int, Decimal)):
            wrong.append(f"no name, process, thread or time: {event}")
        elif not isinstance(event.get("args", {}), dict):
            wrong.append(f"arguments that are no object: {event}")
        elif phase == "X":
            if not isinstance(event.get("dur"), (int, Decimal)) or event["dur"] < 0:
                wrong.append(f"no duration: {event}")
            else:
                slices[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
        elif phase == "M":
            if METADATA.get(event["name"], "") not in event.get("args", {}):
                wrong.append(f"metadata without what it names: {event}")
        elif phase == "i":
            if event.get("s", "t") not in ("g", "p", "t"):
                wrong.append(f"an instant of no scope: {event}")
        else:
            flows[event.get("cat"), event["name"], event.get("id")].append(event)
    wrong += [text for track in slices.values() for text in overlaps(track)]
    return wrong + list(broken_flows(flows, slices))


def overlaps(track):
    """Slices of one thread lie in each other or beside each other; sorts them."""
    track.sort()
    ends = []
    for begin, negative, name in track:
        while ends and ends[-1][0] <= begin + GRAIN:
            ends.pop()
        end = begin - negative
        if ends and end > ends[-1][0] + GRAIN:
            yield f"{name} ends after {ends[-1][1]}, in which it began"
        ends.append((end, name))


def broken_flows(flows, slices):
    """An arrow starts once, ends later, and both ends lie on slices of their threads."""
    for key, events in flows.items():
        starts = [event["ts"] for event in events if event["ph"] == "s"]
        ends = [event["ts"] for event in events if event["ph"] == "f"]
        if len(starts) != 1 or not ends or min(ends) < starts[0]:
            yield f"flow {key}: {len(starts)} starts, {len(ends)} ends"
        for event in events:
            track = slices.get((event["pid"], event["tid"]), [])
            at = event["ts"]
            begun = track[:bisect_right(track, (at + GRAIN, Decimal(0), ""))]
            if not any(begin - negative + GRAIN >= at for begin, negative, _ in reversed(begun)):
                yield f"flow {key} touches nothing at {at}"
