"""Formulas, spreads, comparisons and workloads on data made by hand."""

import pytest

from nanovllm.bench.compare import compare, differences, ratio_of
from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments import graphs, prefix, pressure, tp
from nanovllm.bench.formulas import chosen, efficiency, rate
from nanovllm.bench.plots import speed_up
from nanovllm.bench.stats import Spread, number, percentile
from nanovllm.bench.tables import figures, short_table, table
from nanovllm.bench.timeline import spans
from nanovllm.bench.workload import Shape, random_workload, shared_prefix
from tests.bench.made import preempted_repeat, repeat, spread, throughput_result


def test_percentile_interpolates_between_ranks() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([1, 2, 3, 4, 5], 0.95) == pytest.approx(4.8)
    assert percentile([7], 0.99) == 7
    with pytest.raises(BenchError, match="needs values"):
        percentile([], 0.5)


def test_spread_is_median_smallest_and_largest() -> None:
    s = spread(3.0, 1.0, 2.0)
    assert (s.median, s.low, s.high, s.values) == (2.0, 1.0, 3.0, [3.0, 1.0, 2.0])
    assert s.relative == 1.0
    assert s.text() == "2 (1 – 3)"
    assert number(12345.6) == "12,346"
    assert number(0.01234) == "0.0123"
    with pytest.raises(BenchError, match="at least one repeat"):
        Spread.of([], "s")


def test_rates_and_efficiency() -> None:
    assert rate(30, 2.0) == 15
    assert rate(30, 0.0) == 0
    assert efficiency(150, 2, 100, 1) == 0.75
    assert efficiency(100, 1, 100, 1) == 1


def test_throughput_figures() -> None:
    point = throughput_result(4.0, 8.0).points[0]
    assert point.output_tok_s.values == [8 / 4, 8 / 8]
    assert point.total_tok_s.values == [28 / 4, 28 / 8]
    assert point.prefill_tok_s is not None
    assert point.prefill_tok_s.values == [20, 20]
    assert point.decode_tok_s is not None
    assert point.decode_tok_s.values == [6 / 3, 6 / 7]
    assert point.peak_memory is not None
    assert point.peak_memory.median == 3
    assert point.ttft is not None
    assert point.ttft.values == [1000, 1000]
    assert point.tpot is not None  # of the requests: (4 - 1) / 4 and (2 - 1) / 2, median 0.625 s
    assert point.tpot.values[0] == pytest.approx(625)


def test_a_prefill_only_point_has_no_decode_rate() -> None:
    from nanovllm.bench.experiments.throughput import point_of

    one = repeat()
    one.decode_tokens, one.decode_seconds = 0, 0.0
    assert point_of("nanovllm", "10/1", 2, [one]).decode_tok_s is None


def test_prefix_pressure_and_tp_figures() -> None:
    shared = repeat()
    for q in shared.requests:
        q.prefix_tokens = 8
    point = prefix.point_of(2, 3, 4, [shared])
    assert point.hit_blocks.median == 4  # 2 requests x 8 tokens / 4
    assert point.computed_tokens.median == 20
    squeezed = pressure.point_of(3, 6, [preempted_repeat()])
    assert squeezed.share == 0.5
    assert (squeezed.preemptions.median, squeezed.recomputed.median) == (1, 5)
    assert (squeezed.e2e_p50.median, squeezed.e2e_max.median) == (5, 6)
    one = tp.point_of(1, [repeat(4.0)], 0.0, [])
    two = tp.point_of(2, [repeat(2.5)], None, [one])
    assert one.efficiency.median == 1
    assert two.efficiency.median == pytest.approx(4.0 / 2.5 / 2)
    assert two.collective_share is None


def test_graph_figures_and_speed_up() -> None:
    timed = repeat()
    timed.launch_seconds = 0.002
    point = graphs.point_of("graph", 2, [timed])
    assert (point.launch.median, point.decode_step.median) == (2, 500)
    faster = speed_up(spread(4.0, 6.0), spread(1.0, 2.0))
    assert faster.median == pytest.approx(5 / 1.5)
    assert (faster.low, faster.high) == (2, 6)


def test_pool_sizes_shrink_but_hold_the_largest_request() -> None:
    assert pressure.pool_sizes([4, 4, 2], (1.0, 0.5, 0.1)) == [10, 5, 4]
    assert pressure.pool_sizes([4], (1.0, 0.5)) == [4]


def test_timeline_spans_tell_what_each_request_did() -> None:
    told = {0: [], 1: []}
    for s in spans(preempted_repeat()):
        told[s.request].append((s.state, s.start, s.end))
    assert told[0] == [("prefill", 0.0, 1.0), ("decode", 1.0, 4.0)]
    assert told[1] == [
        ("prefill", 0.0, 1.0),
        ("decode", 1.0, 2.0),
        ("preempted", 2.0, 4.0),
        ("recompute", 4.0, 5.0),
        ("decode", 5.0, 6.0),
    ]


@pytest.mark.parametrize(
    ("a", "b", "better", "verdict"),
    [
        ((10, 11), (20, 22), "higher", "better"),
        ((10, 11), (20, 22), "lower", "worse"),
        ((10, 30), (20, 22), "higher", "within the spread"),
        ((10, 11), (5, 6), "lower", "better"),
        ((10, 11), (5, 6), "neither", ""),
        ((1000, 1001), (1004, 1005), "lower", "under 0.5 %"),
        ((1000, 1001), (1006, 1007), "lower", "worse"),
        ((1000, 1010), (1004, 1005), "lower", "within the spread"),
    ],
)
def test_a_ratio_knows_what_the_spreads_allow(a, b, better: str, verdict: str) -> None:
    found = ratio_of("throughput", "p", "ttft", spread(*a, better=better), spread(*b, better=better))
    assert found.ratio == pytest.approx(sum(b) / sum(a))
    assert (found.low, found.high) == (b[0] / a[1], b[1] / a[0])
    assert found.verdict == verdict


def test_compare_matches_points_and_lists_differences() -> None:
    a, b = throughput_result(4.0, 4.2), throughput_result(2.0, 2.1)
    b.environment.versions["torch"] = "9.9"
    b.settings["seed"] = 7
    found = {r.figure: r for r in compare([a], [b])}
    assert found["output_tok_s"].ratio == pytest.approx(2)
    assert found["output_tok_s"].verdict == "better"
    assert found["peak_memory"].verdict == "within the spread"
    lines = differences([a], [b])
    assert any(line.startswith("versions.torch: ") and line.endswith("-> 9.9") for line in lines), lines
    assert "seed: None -> 7" in lines
    assert not any(line.startswith(("date", "load_average")) for line in lines)
    b.points[0].name = "another"
    with pytest.raises(BenchError, match="no point in common"):
        compare([a], [b])


def test_tables_have_a_column_for_each_figure() -> None:
    result = throughput_result(4.0, 8.0)
    heads, rows = table(result)
    assert len(heads) == len(rows[0]) == 1 + len(figures(result.points[0]))
    assert heads[1] == "completion, tok/s"
    assert rows[0][1] == "1.5 (1 – 2)"
    assert short_table(result)[1][0][-1].endswith("%")


def test_shapes_and_workloads_follow_the_seed() -> None:
    shape = Shape.parse("100:120/8")
    assert str(shape) == "100:120/8"
    assert shape.longest == 128
    work = random_workload(shape, 5, 2048, 0)
    assert work == random_workload(shape, 5, 2048, 0)
    assert work != random_workload(shape, 5, 2048, 1)
    assert all(100 <= len(p) <= 120 for p in work.prompts)
    assert work.outputs == [8] * 5
    assert all(3 <= t < 2048 for p in work.prompts for t in p)
    for wrong in ("64", "64/", "0/4", "9:3/4", "a/b"):
        with pytest.raises(BenchError, match=r"shape"):
            Shape.parse(wrong)


def test_a_shared_prefix_is_shared_and_nothing_more() -> None:
    work = shared_prefix(batch=4, shared=32, tail=16, output=2, vocab_size=2048, seed=0)
    assert len(work.prompts) == 5
    assert len({tuple(p[:32]) for p in work.prompts}) == 1
    assert len({p[32] for p in work.prompts}) == 5
    assert {len(p) for p in work.prompts} == {48}


def test_formulas_of_a_result_are_known() -> None:
    assert set(chosen(("tpot",))) == {"repeat", "seconds", "tpot"}
