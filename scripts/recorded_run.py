"""What docs/benchmarks.md and the course show of a recorded `nanovllm bench all`, made from its results.json(.gz).

usage: recorded_run.py RESULTS [--pictures DIR] [--summary FILE]

Prints the tables of the section "On an H200". --pictures: the report's plots as PNG files of few colours.
--summary: the same results without their raw data, compressed, for the package.
"""

import argparse
import copy
import gzip
import io
import json
from pathlib import Path
from typing import Any

from nanovllm.bench.codec import to_plain
from nanovllm.bench.plots import pictures_of, speed_up
from nanovllm.bench.record import SCHEMA, AnyResult, load
from nanovllm.bench.stats import Spread, number

COLOURS = 64
PICTURES = {  # the plots that docs/benchmarks.md shows, by the report's name of them
    "throughput": "throughput",
    "graphs": "graphs",
    "prefix": "prefix",
    "pressure_timeline_45": "pressure-timeline",
    "serve_rate": "serve",
    "serve_arrivals": "serve-arrivals",
}


def tables(results: list[AnyResult]) -> dict[str, str]:
    """A table in Markdown for each experiment: medians over the repeats, in brackets smallest and largest."""
    make = {"throughput": _throughput, "graphs": _graphs, "prefix": _prefix, "pressure": _pressure, "serve": _serve}
    return {r.experiment: _markdown(*make[r.experiment](r)) for r in results if r.experiment in make}


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _median(spread: Spread | None) -> str:
    return "" if spread is None else number(spread.median)


def _percentiles(point: Any, name: str) -> str:
    return " / ".join(_median(getattr(point, f"{name}_{p}")) for p in ("p50", "p95", "p99"))


def _throughput(result: Any) -> tuple[list[str], list[list[str]]]:
    heads = [
        "throughput: in / out x requests", "prefill tok/s", "decode tok/s", "floor of decode", "completion tok/s",
        "TTFT, ms", "TPOT, ms",
    ]  # fmt: skip
    rows = []
    for p in result.points:
        floor = number(p.floor["decode_tok_s"]) if p.decode_tok_s and "decode_tok_s" in p.floor else ""
        figures = [_median(p.prefill_tok_s), _median(p.decode_tok_s), floor, _median(p.output_tok_s)]
        rows.append([f"{p.shape} x {p.batch}", *figures, _median(p.ttft), _median(p.tpot)])
    return heads, rows


def _graphs(result: Any) -> tuple[list[str], list[list[str]]]:
    heads = [
        "graphs: requests", "TPOT eager, ms", "with graphs", "floor", "speed-up", "launch eager, ms", "with graphs",
    ]  # fmt: skip
    modes = {mode: {p.batch: p for p in result.points if p.mode == mode} for mode in ("eager", "graph")}
    rows = []
    for batch, eager in modes["eager"].items():
        graph = modes["graph"][batch]
        gain = speed_up(eager.tpot, graph.tpot)
        ratio = f"{gain.median:.1f} ({gain.low:.1f} – {gain.high:.1f})"
        tpot = [eager.tpot.text(), graph.tpot.text(), number(graph.floor_ms or 0.0)]
        rows.append([str(batch), *tpot, ratio, eager.launch.text(), graph.launch.text()])
    return heads, rows


def _prefix(result: Any) -> tuple[list[str], list[list[str]]]:
    heads = ["prefix", "blocks found", "tokens computed", "KV blocks in use, peak", "prefill time, s", "TTFT, ms"]
    rows = []
    for p in result.points:
        counts = [_median(p.hit_blocks), _median(p.computed_tokens), _median(p.peak_blocks)]
        rows.append([p.name, *counts, p.prefill_seconds.text(), p.ttft.text()])
    return heads, rows


def _pressure(result: Any) -> tuple[list[str], list[list[str]]]:
    heads = ["pressure", "preemptions", "recomputed tokens", "completion tok/s", "latency p50, s", "latency p95, s"]
    rows = []
    for p in result.points:
        counts = [_median(p.preemptions), _median(p.recomputed)]
        rows.append([p.name, *counts, p.output_tok_s.text(), p.e2e_p50.text(), p.e2e_p95.text()])
    return heads, rows


def _serve(result: Any) -> tuple[list[str], list[list[str]]]:
    heads = [
        "serve: arrivals", "answered/s", "goodput/s", "in time", "completion tok/s",
        "TTFT p50 / p95 / p99, ms", "TPOT, ms", "ITL, ms", "end to end, s",
    ]  # fmt: skip
    rows = []
    for p in result.points:
        share = f"{p.in_time.median:.0%}"
        if p.in_time.high > p.in_time.low:
            share += f" ({p.in_time.low:.0%} – {p.in_time.high:.0%})"
        rates = [p.requests_s.text(), p.goodput.text(), share, _median(p.output_tok_s)]
        rows.append([p.name, *rates, *(_percentiles(p, name) for name in ("ttft", "tpot", "itl", "e2e"))])
    return heads, rows


def summary(results: list[AnyResult]) -> bytes:
    """The results without what each request and step did, as compressed JSON that `record.load` reads."""
    slim = copy.deepcopy(results)
    for result in slim:
        for point in result.points:
            point.repeats = []
    document = {"schema": SCHEMA, "results": [to_plain(r) for r in slim]}
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def write_pictures(results: list[AnyResult], folder: Path) -> None:
    """The plots of PICTURES, as bench-h200-NAME.png."""
    from PIL import Image

    for result in results:
        for picture in (p for p in pictures_of(result) if p.name in PICTURES):
            image = Image.open(io.BytesIO(picture.png)).convert("RGB")
            few = image.quantize(COLOURS, dither=Image.Dither.NONE)
            few.save(folder / f"bench-h200-{PICTURES[picture.name]}.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    parser.add_argument("--summary", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = load(args.results)
    for table in tables(results).values():
        print(table, end="\n\n")
    if args.pictures is not None:
        write_pictures(results, args.pictures)
    if args.summary is not None:
        args.summary.write_bytes(summary(results))


if __name__ == "__main__":
    main()
