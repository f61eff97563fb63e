"""The experiments by name."""

from collections.abc import Callable
from typing import Any

from nanovllm.bench.experiments import graphs, prefix, pressure, serve, throughput, tp
from nanovllm.bench.experiments.common import environment, noting_errors
from nanovllm.bench.options import Options
from nanovllm.bench.record import RESULTS, AnyResult

RUN: dict[str, Callable[[Options], Any]] = {
    "throughput": throughput.run,
    "graphs": graphs.run,
    "prefix": prefix.run,
    "pressure": pressure.run,
    "tp": tp.run,
    "serve": serve.run,
}


def run_experiment(name: str, options: Options) -> AnyResult:
    """Run the experiment of this name, one of `options.EXPERIMENTS`."""
    if not options.keep_errors:
        result: AnyResult = RUN[name](options)
        return result
    failed = RESULTS[name](experiment=name, environment=environment(options))
    with noting_errors(failed, options):
        result = RUN[name](options)
        return result
    return failed
