"""Other engines on the same workload: refused with a sentence when they are missing, else run in their own process."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nanovllm.bench import peer_worker
from nanovllm.bench.environment import EngineRecord
from nanovllm.bench.errors import BenchError
from nanovllm.bench.options import Options
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import Repeat, RequestRow
from nanovllm.bench.runner import WARM_UP_OUTPUTS
from nanovllm.bench.workload import Workload
from nanovllm.engine.checkpoint import resolve_checkpoint

ADD = {
    "transformers": "pip install transformers",
    "vllm": "pip install vllm (in an environment of its own where its versions disagree with these; it needs a GPU)",
}
NANO_VLLM = (
    "nano-vLLM is taken from a checkout, because its package has this one's name: "
    "git clone https://github.com/GeeeekExplorer/nano-vllm, pip install flash-attn xxhash, and pass "
    "--peer-path nano-vllm"
)
POLL_SECONDS = 0.05


def check_peer(options: Options, device: str) -> None:
    """Raise BenchError, with how to add it, when the peer cannot run here."""
    peer, path = options.peer, options.peer_path
    if peer == "nano-vllm":
        if path is None or not (path / "nanovllm" / "__init__.py").is_file():
            raise BenchError(NANO_VLLM if path is None else f"{path} is no checkout of nano-vLLM. {NANO_VLLM}")
    elif path is None and importlib.util.find_spec(str(peer)) is None:
        raise BenchError(f"{peer} is not installed: {ADD[str(peer)]}, then run this again")
    if peer == "nano-vllm" and options.temperature <= 1e-5:
        raise BenchError("nano-vLLM refuses temperature 0: leave --temperature out, or give it a value above 0")
    if peer == "nano-vllm" and device == "cpu" and not options.limits.get("device"):
        raise BenchError("nano-vLLM needs an NVIDIA GPU, and torch sees none: see `nanovllm info`")
    if peer == "transformers" and options.limits.get("tensor_parallel_size", 1) > 1:
        raise BenchError("the transformers adapter runs one rank: leave --tensor-parallel-size out")


def peer_repeats(
    options: Options, device: str, dtype: str, work: list[Workload], longest: int, progress: Progress
) -> tuple[EngineRecord, list[list[Repeat]]]:
    """The peer's record and the repeats of every workload, in their order."""
    check_peer(options, device)
    job = _job(options, device, dtype, work, longest)
    with tempfile.TemporaryDirectory(prefix="nanovllm-bench-") as folder:
        lines = _run_worker(job, Path(folder), options, progress)
    ready = next((line for line in lines if "ready" in line), None)
    points: list[list[Repeat]] = [[] for _ in work]
    for line in lines:
        if "point" in line:
            points[line["point"]].append(_repeat(work[line["point"]], line, str(options.peer)))
    if ready is None or any(len(p) != options.repeats for p in points):
        raise BenchError(f"{options.peer} ended before it had run every request; its own messages stand above")
    return _record(job, ready), points


def _job(options: Options, device: str, dtype: str, work: list[Workload], longest: int) -> dict[str, Any]:
    return {
        "engine": options.peer,
        "model": str(resolve_checkpoint(options.model)),
        "device": device,
        "dtype": dtype,
        "ranks": options.limits.get("tensor_parallel_size", 1),
        "max_model_len": longest + 1,
        "max_num_seqs": max(len(w.prompts) for w in work),
        "temperature": options.temperature,
        "seed": options.seed,
        "warmups": options.warmups,
        "warm_up_outputs": WARM_UP_OUTPUTS,
        "repeats": options.repeats,
        "work": [[w.prompts, w.outputs] for w in work],
    }


def _run_worker(job: dict[str, Any], folder: Path, options: Options, progress: Progress) -> list[dict[str, Any]]:
    """Run the worker to its end, moving the bar as its lines come."""
    job_file, out_file, log = folder / "job.json", folder / "out.jsonl", folder / "stderr.txt"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    out_file.touch()
    paths = [str(options.peer_path.resolve())] if options.peer_path else []
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).strip(":")}
    # -P: this package's folder must not be on the path, only the peer's.
    command = [sys.executable, "-P", peer_worker.__file__, str(job_file), str(out_file)]
    progress.say("starts")
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, cwd=folder, env=variables, stdout=errors, stderr=errors) as process,
    ):
        try:
            _follow(process, out_file, progress)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise BenchError(f"{options.peer} failed with exit code {process.returncode}: {tail[0]}")
    return [json.loads(line) for line in out_file.read_text(encoding="utf-8").splitlines()]


def _follow(process: "subprocess.Popen[bytes]", out_file: Path, progress: Progress) -> None:
    seen = 0
    while process.poll() is None:
        lines = out_file.read_text(encoding="utf-8").count("\n")
        for _ in range(max(0, lines - 1) - seen):  # the first line says that it is ready
            progress.advance()
        seen = max(seen, lines - 1)
        time.sleep(POLL_SECONDS)


def _repeat(work: Workload, line: dict[str, Any], peer: str) -> Repeat:
    if line["outputs"] != work.outputs:
        got, asked = sum(line["outputs"]), work.output_tokens
        raise BenchError(f"{peer} gave {got:,} completion tokens where {asked:,} were asked for: no comparison")
    seconds = line["seconds"]
    rows = [RequestRow(0.0, None, seconds, len(p), n) for p, n in zip(work.prompts, work.outputs, strict=True)]
    return Repeat(seconds, None, None, work.prompt_tokens, work.output_tokens, None, [], None, rows)


def _record(job: dict[str, Any], ready: dict[str, Any]) -> EngineRecord:
    told = {k: v for k, v in job.items() if k not in ("work", "model", "engine")}
    return EngineRecord(
        name=job["engine"],
        device=job["device"],
        dtype=job["dtype"],
        attention_backend="its own",
        tensor_parallel_size=job["ranks"],
        graphs=False,
        graphs_reason="not recorded for a peer",
        overlap=False,
        kv={"prefix_cache": "emptied before each repeat where the peer has one"},
        limits=told,
        start_seconds=ready["ready"],
        versions=ready["versions"],
    )
