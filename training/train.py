"""Train `qwen3-tiny` within a fixed number of seconds.

    python -m training.train --prose .corpus --tokenizer nanovllm/assets/qwen3-tiny/tokenizer.json --out out

Everything follows the share of the time that has passed: first short rows, so that looking up a fact emerges quickly,
then rows of 2,048; the learning rate warms up, stays, and falls to zero (warm-up, stable, decay). Worker processes
make the data while the GPU trains. Weight matrices are trained with Muon, embedding and norms with AdamW.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training import data, evaluate
from training.model import Qwen3, Shape

Cases = dict[str, list[evaluate.Case]]


@dataclass(slots=True)
class Settings:
    """Hyper-parameters; lengths and shares are (until this share of the time, [(row length, weight)])."""

    seconds: float = 360.0
    seed: int = 1
    batch_tokens: int = 131072
    muon_lr: float = 3e-3
    adam_lr: float = 3e-3
    weight_decay: float = 0.05
    warmup: float = 0.02
    decay_from: float = 0.65
    text_weight: float = 0.3
    clip: float = 1.0
    recall_share: float = 0.5
    lengths: list[tuple[float, list[tuple[int, float]]]] = field(
        default_factory=lambda: [
            (0.12, [(256, 1.0)]),
            (0.22, [(512, 0.8), (256, 0.2)]),
            (0.32, [(1024, 0.8), (256, 0.2)]),
            (1.01, [(2048, 0.7), (1024, 0.15), (256, 0.15)]),
        ]
    )


def lr_scale(progress: float, s: Settings) -> float:
    """Multiplier of the learning rates at a share of the time: warm-up, plateau, straight line to zero."""
    return min(progress / s.warmup, 1.0, (1.0 - progress) / (1.0 - s.decay_from)) if progress < 1 else 0.0


def draw_length(progress: float, s: Settings, rng: random.Random) -> int:
    """The row length of the next batch."""
    options = next(options for until, options in s.lengths if progress < until)
    return rng.choices([length for length, _ in options], [weight for _, weight in options])[0]


def worker(number: int, s: Settings, tokenizer_file: str, prose: NDArray[np.uint16], progress: Any, out: Any) -> None:
    """Put batches on a queue for ever (the process ends with its parent)."""
    rng = random.Random(1000 * s.seed + number)
    mixer = data.Mixer(Tokenizer.from_file(tokenizer_file), prose, rng)
    while True:
        length = draw_length(min(progress.value, 1.0), s, rng)
        out.put(mixer.rows(s.batch_tokens // length, length, s.recall_share))


def weighted_loss(hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of hidden [B, T, hidden] against targets [B, T], averaged under weights [B, T]."""
    logits = F.linear(hidden, table).float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum().clamp(min=1.0)


def split_batch(rows: Tensor, text_weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """Marked rows [B, T] to ids [B, T], next tokens [B, T] and loss weights [B, T]; the last has weight 0."""
    ids = rows & data.ID_MASK
    targets = torch.roll(ids, -1, 1)
    marks = torch.roll(rows, -1, 1)
    weights = ((marks & data.ANSWER) != 0).float() + text_weight * ((marks & data.TEXT) != 0).float()
    weights[:, -1] = 0
    return ids, targets, weights


class Run:
    """Model, optimisers and the record of one training run."""

    def __init__(self, s: Settings, out: Path, device: str, resume: Path | None) -> None:
        self.s, self.out, self.device = s, out, device
        torch.manual_seed(s.seed)
        self.model = Qwen3(Shape()).to(device)
        if resume is not None:
            self.model.load_state_dict({k: v.float() for k, v in load_file(str(resume)).items()})
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.optimisers = [
            torch.optim.Muon(matrices, lr=s.muon_lr, weight_decay=s.weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=s.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.rates = [s.muon_lr, s.adam_lr]
        self.loss = weighted_loss
        self.log: list[dict[str, object]] = []
        self.tokens = 0

    def compile(self) -> None:
        """Compile each layer (all share one graph a row length) and the loss."""
        torch._dynamo.config.recompile_limit = 64
        for layer in self.model.model.layers:
            layer.compile(dynamic=False)
        self.loss = torch.compile(weighted_loss, dynamic=False)

    def step(self, rows: Tensor, scale: float) -> Tensor:
        """One optimiser step on marked rows; returns the loss without waiting for it."""
        ids, targets, weights = split_batch(rows.to(self.device, non_blocking=True).long(), self.s.text_weight)
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.loss(self.model(ids), self.model.model.embed_tokens.weight, targets, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.s.clip)
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.tokens += rows.numel()
        return loss.detach()

    def accuracy(self, cases: Cases, rounded: bool = False) -> dict[str, float]:
        """Exact answers on held-out prompts; `rounded` runs the weights in bf16 as they are saved."""
        model = self.model
        if rounded:
            model = Qwen3(Shape()).to(self.device)
            model.load_state_dict({k: v.bfloat16().float() for k, v in self.model.state_dict().items()})

        def logits(ids: Tensor) -> Tensor:
            with torch.autocast(self.device, torch.bfloat16):
                return model.logits(model(ids))

        with torch.compiler.set_stance("force_eager"):
            return evaluate.measure(logits, cases, self.device, 64)

    def save(self) -> None:
        """Write the weights in bf16 and the record so far."""
        self.out.mkdir(parents=True, exist_ok=True)
        weights = {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in self.model.state_dict().items()}
        save_file(weights, str(self.out / "model.safetensors"), metadata={"format": "pt"})
        record = {
            "settings": asdict(self.s),
            "shape": asdict(Shape()),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            "tokens": self.tokens,
            "log": self.log,
        }
        (self.out / "record.json").write_text(json.dumps(record, indent=1))


def train(run: Run, queue: Any, progress: Any, eval_every: float, cases: AsyncResult[Cases]) -> None:
    """Train until the time is over, then measure and save."""
    begun = time.monotonic()
    next_eval, steps = eval_every, 0
    while (elapsed := time.monotonic() - begun) < run.s.seconds:
        progress.value = elapsed / run.s.seconds
        rows = torch.from_numpy(queue.get().astype("int32"))
        loss = run.step(rows, lr_scale(progress.value, run.s))
        steps += 1
        if steps % 50 == 0 or steps < 10:
            entry: dict[str, object] = {
                "step": steps,
                "seconds": round(elapsed, 1),
                "row": rows.shape[1],
                "loss": round(float(loss), 4),
            }
            run.log.append(entry)
            print(entry, "queue", queue.qsize(), flush=True)
        if elapsed > next_eval:
            next_eval = elapsed + eval_every
            run.log.append({"step": steps, "seconds": round(elapsed, 1), "held_out": run.accuracy(cases.get())})
            print(run.log[-1], flush=True)
            run.save()
    print(f"{steps} steps, {run.tokens} tokens, {time.monotonic() - begun:.0f} s", flush=True)


def parse() -> argparse.Namespace:
    """Command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prose", type=Path, required=True, help="folder of .txt files")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="a model.safetensors to go on from (with long rows only)")
    parser.add_argument("--seconds", type=float, default=Settings().seconds)
    parser.add_argument("--seed", type=int, default=Settings().seed)
    parser.add_argument("--batch-tokens", type=int, default=Settings().batch_tokens)
    parser.add_argument("--lr", type=float, default=Settings().muon_lr, help="of Muon and AdamW")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--eval-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--final-n", type=int, default=1000, help="held-out prompts a task at the end")
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Start the workers, train, measure, save."""
    args = parse()
    s = Settings(args.seconds, args.seed, args.batch_tokens, args.lr, args.lr)
    if args.resume is not None:
        s.lengths, s.decay_from = s.lengths[-1:], 0.3
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = mp.get_context("fork")
    queue, progress = context.Queue(maxsize=48), context.Value("d", 0.0)
    prose = data.load_prose(Tokenizer.from_file(str(args.tokenizer)), args.prose)
    workers = [
        context.Process(target=worker, args=(i, s, str(args.tokenizer), prose, progress, queue), daemon=True)
        for i in range(args.workers)
    ]
    pool = context.Pool(2)  # held-out prompts are drawn and tokenised beside the training data
    few, many = (
        pool.apply_async(evaluate.suite_cases, (str(args.tokenizer), n, 2)) for n in (64, max(1, args.final_n))
    )
    for process in workers:
        process.start()
    torch.set_float32_matmul_precision("high")
    run = Run(s, args.out, "cuda" if torch.cuda.is_available() else "cpu", args.resume)
    if not args.no_compile:
        run.compile()
    train(run, queue, progress, args.eval_every, few)
    run.save()
    for process in workers:
        process.terminate()
    if args.final_n:
        run.log.append(
            {"final": run.accuracy(many.get(), rounded=True), "n": {k: len(v) for k, v in many.get().items()}}
        )
        print(json.dumps(run.log[-1], indent=1), flush=True)
        run.save()
    os._exit(0)  # a queue with unread batches would keep the process waiting for its feeder


if __name__ == "__main__":
    main()
