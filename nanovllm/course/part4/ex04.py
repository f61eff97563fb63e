"""4.4 TTFT, TPOT, percentiles and goodput."""

import math
import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant

_ENGINE = "from nanovllm.engine.metrics import RequestMetrics\n"
_TTFT = (
    _ENGINE
    + """\
one = RequestMetrics(arrival_time=10.0, first_token_time=10.5, finish_time=12.5, num_completion_tokens=5)
waiting = RequestMetrics(arrival_time=10.0)
result = [one.ttft, waiting.ttft]"""
)
_TPOT = (
    _ENGINE
    + """\
result = []
for tokens, finish in ((5, 12.5), (2, 12.5), (1, 10.5), (5, None)):
    one = RequestMetrics(arrival_time=10.0, first_token_time=10.5, finish_time=finish, num_completion_tokens=tokens)
    result.append(one.tpot)
result.append(RequestMetrics(arrival_time=10.0, num_completion_tokens=5).tpot)"""
)
_STATS = "from nanovllm.bench import stats\n"
_PERCENTILE = (
    _STATS
    + """\
values = [40.0, 10.0, 20.0]
result = [stats.percentile(values, share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
result += [stats.percentile([7.0], 0.99), values]"""
)
_REFUSED = (
    _STATS
    + """\
from nanovllm.bench.errors import BenchError
result = []
for values, share in (([], 0.5), ([1.0], 1.5), ([1.0], -0.1)):
    try:
        result.append(stats.percentile(values, share))
    except BenchError:
        result.append("refused")"""
)
_LOAD = "from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord\n"
_MEETS = (
    _LOAD
    + """\
record = RequestRecord(0, due=1.0, events=[1.5, 2.0, 3.5], status=200, num_completion_tokens=3)  # 0.5, 1.0, 2.5 s
single = RequestRecord(0, due=1.0, events=[1.5], status=200, num_completion_tokens=1)
limits = [Limits(), Limits(ttft=0.5, tpot=1.0, e2e=2.5), Limits(ttft=0.4), Limits(tpot=0.9), Limits(e2e=2.4)]
result = [[one.meets(limit) for limit in limits] for one in (record, single)]"""
)
_GOODPUT = (
    _LOAD
    + """\
slow = RequestRecord(0, due=0.0, events=[3.0], status=200, num_completion_tokens=1)
quick = [RequestRecord(i, due=0.0, events=[0.5], status=200, num_completion_tokens=1) for i in range(6)]
refused = [RequestRecord(i, due=0.0, events=[0.0], status=429) for i in range(3)]
result = LoadReport([slow, *quick, slow, *refused], 4.0, Limits(ttft=1.0)).goodput"""
)


def _values(rng: random.Random, count: int) -> dict[str, Any]:
    return {
        "values": [round(rng.uniform(0, 9), 1) for _ in range(count)],
        "share": rng.choice([0.5, 0.95, 0.99, round(rng.random(), 2)]),
    }


def _interpolated(values: list[float], share: float) -> float:
    """Linear between the two neighbours: each counts by how near it is."""
    ordered, place = sorted(values), share * (len(values) - 1)
    near = {i: 1 - abs(place - i) for i in (math.floor(place), math.ceil(place))}
    return float(sum(ordered[i] * weight for i, weight in near.items()))


def _requests(rng: random.Random, requests: int, tokens: int) -> dict[str, Any]:
    made = []
    for _ in range(requests):
        due = round(rng.uniform(0, 3), 1)
        gaps = [round(rng.uniform(0.1, 2), 1) for _ in range(rng.randint(1, tokens))]
        made.append([due, [round(due + sum(gaps[: i + 1]), 1) for i in range(len(gaps))], rng.choice([200, 200, 429])])
    limits = [rng.choice([None, round(rng.uniform(0.2, 4), 1) + 0.05]) for _ in range(3)]
    return {"requests": made, "limits": limits, "duration": 8.0}


def _useful(requests: Any, limits: Any, duration: float) -> float:
    good = 0
    for due, events, status in requests:
        times = [events[0] - due, None, events[-1] - due]
        if len(events) > 1:
            times[1] = (events[-1] - events[0]) / (len(events) - 1)
        kept = [limit is None or time is None or time <= limit for time, limit in zip(times, limits, strict=True)]
        good += status == 200 and all(kept)
    return good / duration


_REPORT = (
    _LOAD
    + """\
records = [
    RequestRecord(i, due=due, events=events, status=status, num_completion_tokens=len(events))
    for i, (due, events, status) in enumerate(requests)
]
result = LoadReport(records, duration, Limits(*limits)).goodput"""
)

_NEAREST = """
def percentile(values, share):
    if not values or not 0.0 <= share <= 1.0:
        raise BenchError(f"{len(values)} values, share {share}")
    return sorted(values)[round(share * (len(values) - 1))]
"""
_SORTS = """
def percentile(values, share):
    if not values or not 0.0 <= share <= 1.0:
        raise BenchError(f"{len(values)} values, share {share}")
    values.sort()
    position = share * (len(values) - 1)
    low, high = math.floor(position), math.ceil(position)
    return values[low] + (position - low) * (values[high] - values[low])
"""
_OF_N = """
def percentile(values, share):
    if not values or not 0.0 <= share <= 1.0:
        raise BenchError(f"{len(values)} values, share {share}")
    ordered = sorted(values)
    position = min(share * len(ordered), len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])
"""
_NUMPY = """
def percentile(values, share):
    import numpy
    if len(values) == 0 or share < 0 or share > 1:
        raise BenchError(f"{len(values)} values, share {share}")
    return float(numpy.quantile(values, share))
"""
_ONE_BY_ONE = """
def meets(record, limits):
    if limits.ttft is not None and record.ttft > limits.ttft:
        return False
    if limits.tpot is not None and record.tpot is not None and record.tpot > limits.tpot:
        return False
    return limits.e2e is None or record.e2e <= limits.e2e
"""

EXERCISE = Exercise(
    number="4.4",
    title="TTFT, TPOT, percentiles and goodput",
    file="part4/ex04_metrics.py",
    pieces=(
        ("ttft", seams.TTFT),
        ("tpot", seams.TPOT),
        ("percentile", seams.PERCENTILE),
        ("meets", seams.MEETS),
        ("goodput", seams.GOODPUT),
    ),
    hints=(
        "Draw one request as a line of time: arrival, first token, last token. Mark TTFT and the gaps between tokens; "
        "count the gaps.",
        "None is not 0: ask for it before you subtract. For the percentile: math.floor and math.ceil of p are the two "
        "neighbours, p - floor says how far it is to the upper one.",
        "(finish - first) / (n - 1) from n = 2 on; x[low] + (p - low) * (x[high] - x[low]); a limit is broken only if "
        "neither is None and time > limit; sum(record.meets(limits) for record in completed) / duration.",
    ),
    groups=(
        Group(
            "TTFT and TPOT of one request",
            1,
            "Between which two times does each one lie? How many gaps have n tokens, and what is there to say about "
            "one token, or none yet?",
            (
                Example(
                    _TTFT,
                    [0.5, None],
                    ("From the arrival to the first token. And what is there to say while no token has come?"),
                ),
                Example(
                    _TPOT,
                    [0.5, 2.0, None, None, None],
                    (
                        "How many gaps are there between n tokens? And where there is no gap, or no end yet, "
                        "what is the answer?"
                    ),
                ),
            ),
        ),
        Group(
            "percentiles",
            1,
            "Sort a copy and number the values from 0. Which position is the share at, between which values?",
            (
                Example(_PERCENTILE, [10.0, 15.0, 20.0, 30.0, 40.0, 7.0, [40.0, 10.0, 20.0]]),
                Example(
                    _REFUSED,
                    ["refused"] * 3,
                    (
                        "No values, or a share outside of 0 .. 1: nobody can answer that. BenchError, with "
                        "both numbers in its message."
                    ),
                ),
            ),
            numeric=Numeric(
                (("count", 1, 8),), _values, _STATS + "result = stats.percentile(values, share)", _interpolated
            ),
        ),
        Group(
            "requests within their limits",
            1,
            "Three times and three limits, any of which may be missing. Which pair breaks a limit here? Exactly at a "
            "limit is within it.",
            (Example(_MEETS, [[True, True, False, False, False], [True, True, False, True, True]]),),
        ),
        Group(
            "goodput",
            1,
            "Which requests count, and by what time are they divided? Refused ones were never completed.",
            (Example(_GOODPUT, 1.5),),
            numeric=Numeric((("requests", 1, 6), ("tokens", 1, 4)), _requests, _REPORT, _useful),
        ),
    ),
    bugs=(
        Variant(
            "counts from the arrival to the end",
            "ttft",
            (("else self.first_token_time - ", "else (self.finish_time or 0) - "),),
        ),
        Variant("says 0 where there is no token yet", "ttft", (("return None if", "return 0.0 if"),)),
        Variant(
            "divides by the tokens, not by the gaps",
            "tpot",
            (("(self.num_completion_tokens - 1)", "self.num_completion_tokens"),),
        ),
        Variant(
            "counts from the arrival",
            "tpot",
            (("(self.finish_time - self.first_token_time)", "(self.finish_time - self.arrival_time)"),),
        ),
        Variant("says 0 for a single token", "tpot", (("return None", "return 0.0"),)),
        Variant("does not see that a single token has no gap", "tpot", ((" or self.num_completion_tokens < 2", ""),)),
        Variant("takes the nearest value", "percentile", source=_NEAREST),
        Variant("sorts the list it was given", "percentile", source=_SORTS),
        Variant("does not sort", "percentile", (("sorted(values)", "list(values)"),)),
        Variant("puts share 1 behind the last value", "percentile", source=_OF_N),
        Variant("lets any share pass", "percentile", ((" or not 0.0 <= share <= 1.0", ""),)),
        Variant("refuses a time exactly at its limit", "meets", (("value <= limit", "value < limit"),)),
        Variant("is content with one limit kept", "meets", (("return all(", "return any("),)),
        Variant(
            "refuses a request without TPOT",
            "meets",
            (("value is None or limit is None", "limit is None or value is not None"),),
        ),
        Variant("forgets the whole latency", "meets", ((", (self.e2e, limits.e2e))", ")"),)),
        Variant(
            "counts every completed request",
            "goodput",
            (("sum(record.meets(self.limits) for record in self.completed)", "len(self.completed)"),),
        ),
        Variant("counts refused requests too", "goodput", (("in self.completed", "in self.records"),)),
        Variant(
            "gives the share instead of a rate", "goodput", (("/ self.duration", "/ max(1, len(self.completed))"),)
        ),
    ),
    harmless=(
        Variant("leaves the arithmetic to numpy", "percentile", source=_NUMPY),
        Variant("asks for one limit after the other", "meets", source=_ONE_BY_ONE),
        Variant(
            "counts a list",
            "goodput",
            (
                (
                    "sum(record.meets(self.limits) for record in self.completed)",
                    "len([record for record in self.completed if record.meets(self.limits)])",
                ),
            ),
        ),
    ),
)
