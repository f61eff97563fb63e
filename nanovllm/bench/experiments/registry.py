"""The experiments by name."""

from nanovllm.bench.experiments import graphs, prefix, pressure, throughput, tp
from nanovllm.bench.options import Options
from nanovllm.bench.record import AnyResult


def run_experiment(name: str, options: Options) -> AnyResult:
    """Run the experiment of this name, one of `options.EXPERIMENTS`."""
    if name == "throughput":
        return throughput.run(options)
    if name == "graphs":
        return graphs.run(options)
    if name == "prefix":
        return prefix.run(options)
    if name == "pressure":
        return pressure.run(options)
    return tp.run(options)
