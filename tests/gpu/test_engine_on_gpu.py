"""The engine on a GPU: the CPU's tokens from every backend, eager and recorded, at every batch size, and no leaks."""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.assets import tasks
from nanovllm.errors import BackendError, ConfigError, MemoryBudgetError, RequestError
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.cuda_graphs import DecodeGraphs, graph_batch_sizes

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0, max_tokens=24)
BACKENDS = [
    ("torch", "float32", True, 16),
    ("triton", "float32", True, 16),
    ("triton", "float32", False, 16),
    ("triton", "float16", False, 3),
    ("triton", "bfloat16", False, 256),
    ("flash_attn", "bfloat16", True, 256),
    ("flash_attn", "bfloat16", False, 256),
    ("flash_attn", "float16", False, 256),
]
IDS = [f"{b}-{d}-{'eager' if e else 'graph'}-bs{s}" for b, d, e, s in BACKENDS]
SMALL = {"gpu_memory_utilization": 0.2}


Golden = tuple[list[str], list[list[int]]]  # prompts, and the CPU's greedy tokens for each


def tokens(llm: LLM, texts: list[str], params: SamplingParams | list[SamplingParams] = GREEDY) -> list[list[int]]:
    return [o.token_ids for o in llm.generate(texts, params, use_tqdm=False)]


def clear_answer(llm: LLM, text: str) -> tuple[list[int], float]:
    """The greedy tokens, and the smallest lead of a chosen token over the next best one, in logits."""
    leads: list[float] = []
    compute = type(llm.model_runner.model).compute_logits

    def watch(hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor | None:
        logits = compute(llm.model_runner.model, hidden, context)
        assert logits is not None
        best = logits[0].topk(2).values
        leads.append(float(best[0] - best[1]))
        return logits

    llm.model_runner.model.compute_logits = watch
    return tokens(llm, [text])[0], min(leads)


@pytest.fixture(scope="module")
def golden() -> Golden:
    """40 prompts on which no token is a close call, so that rounding in half precision cannot change one."""
    texts: list[str] = []
    expected: list[list[int]] = []
    with LLM("qwen3-tiny", device="cpu") as llm:
        for i in range(400):
            text = tasks.examples(["count", "copy", "series"][i % 3], 1, seed=1000 + i)[0].prompt
            ids, lead = clear_answer(llm, text)
            if lead > 1.0:
                texts.append(text)
                expected.append(ids)
            if len(texts) == 40:
                return texts, expected
    raise AssertionError(f"only {len(texts)} of 400 prompts have clear answers")


@pytest.fixture(autouse=True)
def collect() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def make(backend: str, dtype: str, eager: bool, block_size: int, **limits: object) -> LLM:
    if backend == "flash_attn":
        pytest.importorskip("flash_attn")
    options = {"attention_backend": backend, "dtype": dtype, "enforce_eager": eager, "kvcache_block_size": block_size}
    options["prefill_graph_tokens"] = 200  # fewer than some prefills have, and more than others
    return LLM("qwen3-tiny", device="cuda", **{**SMALL, **options, **limits})


@pytest.mark.parametrize(("backend", "dtype", "eager", "block_size"), BACKENDS, ids=IDS)
class TestSameTokensAsTheCPU:
    def test_batched_chunked_cached_and_alone(
        self, backend: str, dtype: str, eager: bool, block_size: int, golden: Golden
    ) -> None:
        texts, cpu_tokens = golden
        with make(backend, dtype, eager, block_size, max_num_seqs=40) as llm:
            assert llm.plan.backend.name == backend
            assert (llm.model_runner.graphs is not None) == (not eager)
            assert tokens(llm, texts) == cpu_tokens  # batch sizes 40 down to 1, as requests end
            assert tokens(llm, texts) == cpu_tokens  # with a cached prefix where blocks are small
            for n in (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33):
                assert tokens(llm, texts[:n]) == cpu_tokens[:n]
        for budget in (5, 64):
            with make(backend, dtype, eager, block_size, max_num_seqs=8, max_num_batched_tokens=budget) as llm:
                assert tokens(llm, texts[:12]) == cpu_tokens[:12]

    def test_preempted(self, backend: str, dtype: str, eager: bool, block_size: int, golden: Golden) -> None:
        if block_size > 16:
            pytest.skip("prompts of one block each are not preempted")
        blocks = 4 * math.ceil(48 / block_size) + 2
        with make(backend, dtype, eager, block_size, max_num_seqs=12, num_kvcache_blocks=blocks) as llm:
            outputs = llm.generate(golden[0], GREEDY, use_tqdm=False)
            assert [o.token_ids for o in outputs] == golden[1]
            assert sum(o.metrics.num_preemptions for o in outputs) > 0
            llm.scheduler.check_integrity()


def test_long_recall_over_many_pages() -> None:
    """A fact stated more than 1,500 tokens back: a wrong slot, position or mask shows as a wrong answer."""
    example = tasks.examples("recall", 1, seed=5, tokens=1800, gap=1600)[0]
    answers = []
    for backend, dtype, eager, block_size in BACKENDS:
        with make(backend, dtype, eager, block_size, max_num_batched_tokens=512) as llm:
            answers.append(llm.generate([example.prompt], GREEDY, use_tqdm=False)[0].text)
    assert answers == [example.answer] * len(BACKENDS)


@pytest.mark.parametrize("max_num_seqs", [1, 9, 12, 100, 512])
def test_recorded_steps_equal_eager_ones_at_every_batch_size(max_num_seqs: int) -> None:
    """Each decode batch of 1 .. max_num_seqs rows is run twice on the same cache: replayed and eagerly."""
    with make("triton", "float32", False, 16, max_num_seqs=max_num_seqs, max_model_len=64) as llm:
        for i in range(max_num_seqs):
            llm.add_request([1 + (7 * i + j) % 500 for j in range(5 + i % 20)], SamplingParams(temperature=i % 2 * 0.7))
        while llm.scheduler.waiting:
            llm.step()
        seqs, runner = list(llm.scheduler.running), llm.model_runner
        for seq in seqs:
            llm.scheduler.block_manager.append(seq)
            seq.num_scheduled_tokens = 1
        slices, graphs = [s.scheduled_slice() for s in seqs], runner.graphs
        assert graphs is not None
        assert graphs.sizes == graph_batch_sizes(max_num_seqs)
        for size in range(1, max_num_seqs + 1):
            sampling = SamplingInputs.of(seqs[:size])
            runner.graphs = graphs
            replayed = runner.run(slices[:size], False, sampling)
            runner.graphs = None
            assert replayed == runner.run(slices[:size], False, sampling), f"batch of {size}"
        runner.graphs = graphs


@contextmanager
def eager_logits(runner: Any) -> Iterator[list[torch.Tensor]]:
    """The logits of the steps that the runner launches kernel by kernel meanwhile, in fp32."""
    compute, seen = runner.model.compute_logits, []

    def watched(*args: Any) -> Any:
        logits = compute(*args)
        seen.append(logits.float())
        return logits

    runner.model.compute_logits = watched
    yield seen
    del runner.model.compute_logits


@pytest.mark.parametrize(("backend", "block_size"), [("triton", 16), ("flash_attn", 256)])
def test_recorded_prefills_equal_eager_ones(backend: str, block_size: int) -> None:
    """One to sixteen prompts of 1 to 500 tokens, alone and after a cached prefix, replayed and eagerly.

    In half precision the padded step may round otherwise, so there the replayed tokens must be as likely as the eager
    ones, within two steps of a bfloat16 logit between 8 and 16.
    """
    exact = backend == "triton"
    dtype, hot = ("float32", 0.7) if exact else ("bfloat16", 0.0)
    with make(backend, dtype, False, block_size, max_num_seqs=16, prefill_graph_tokens=500) as llm:
        runner, manager = llm.model_runner, llm.scheduler.block_manager
        assert runner.prefill_graphs is not None
        assert runner.prefill_graphs.sizes == [64, 128, 192, 256, 384, 500]
        for lengths in ([1], [64], [65], [200], [3, 1, 40], [30] * 16, [500], [1] * 16):
            for cached in (0, block_size):
                for i, length in enumerate(lengths):
                    prompt = [1 + (7 * i + j) % 500 for j in range(cached + length)]
                    llm.add_request(prompt, SamplingParams(temperature=i % 2 * hot, seed=i))
                seqs = list(llm.scheduler.waiting)
                for seq in seqs:
                    manager.allocate(seq)
                    seq.num_cached_tokens, seq.num_scheduled_tokens = 0, cached
                if cached:  # the prefixes, in a step of their own
                    runner.run([seq.scheduled_slice() for seq in seqs], True)
                for seq, length in zip(seqs, lengths, strict=True):
                    seq.num_cached_tokens, seq.num_scheduled_tokens = cached, length
                slices, sampling = [seq.scheduled_slice() for seq in seqs], SamplingInputs.of(seqs)
                graphs = runner.prefill_graphs
                replayed = runner.run(slices, True, sampling)
                runner.prefill_graphs = None
                with eager_logits(runner) as logits:
                    eager = runner.run(slices, True, sampling)
                runner.prefill_graphs = graphs
                what = f"{lengths} tokens after {cached}"
                if exact:
                    assert replayed == eager, what
                else:
                    behind = logits[0].max(1).values - logits[0][range(len(seqs)), replayed]
                    assert behind.max() <= 0.125, f"{what}: {behind.tolist()}"
                for seq in seqs:
                    llm.abort(seq.seq_id)


def test_graph_sizes_always_hold_the_largest_batch() -> None:
    assert graph_batch_sizes(1) == [1]
    assert graph_batch_sizes(9) == [1, 2, 4, 8, 9]
    assert graph_batch_sizes(40) == [1, 2, 4, 8, 16, 32, 40]


def test_seeded_sampling_is_the_cpus_with_top_k_and_top_p_beside_greedy_rows(golden: Golden) -> None:
    texts = golden[0][:9]
    params = [
        SamplingParams(temperature=0.8 * (i % 3), top_k=5 * (i % 2), top_p=1.0 - 0.2 * (i % 2), seed=i, max_tokens=12)
        for i in range(9)
    ]
    with LLM("qwen3-tiny", device="cpu") as llm:
        expected = tokens(llm, texts, params)
    with make("triton", "float32", False, 16) as llm:
        assert tokens(llm, texts, params) == expected
        assert [tokens(llm, [t], [p])[0] for t, p in zip(texts, params, strict=True)] == expected


def test_a_prompt_just_below_max_model_len_and_one_at_it() -> None:
    with make("triton", "bfloat16", False, 16, max_model_len=64) as llm:
        outputs = llm.generate([[5] * 63] * 3, SamplingParams(temperature=0, max_tokens=9), use_tqdm=False)
        assert [(len(o.token_ids), o.finish_reason) for o in outputs] == [(1, "length")] * 3
        with pytest.raises(RequestError, match="64"):
            llm.generate([[5] * 64], use_tqdm=False)


def test_two_engines_side_by_side_and_one_after_the_other(golden: Golden) -> None:
    with make("triton", "float32", False, 16, max_num_seqs=8) as a, make("triton", "float32", True, 4) as b:
        ids = [(llm, llm.add_request(p, GREEDY)) for p in golden[0][:6] for llm in (a, b)]
        done: dict[tuple[int, int], list[int]] = {}
        while not (a.is_finished() and b.is_finished()):
            for llm in (a, b):
                if not llm.is_finished():
                    done.update({(id(llm), o.request_id): o.token_ids for o in llm.step().finished})
        got = [done[id(llm), request_id] for llm, request_id in ids]
        assert got == [t for t in golden[1][:6] for _ in range(2)]
    with make("triton", "float32", False, 16) as c:
        assert tokens(c, golden[0][:4]) == golden[1][:4]


def test_exit_returns_the_memory() -> None:
    make("triton", "float32", False, 16).exit()  # libraries keep workspaces after their first use
    gc.collect()
    torch.cuda.empty_cache()
    allocated, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    llm = make("triton", "float32", False, 16)
    assert torch.cuda.mem_get_info()[0] < free - 2**30
    llm.exit()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= allocated + 2**20
    assert torch.cuda.mem_get_info()[0] >= free - 64 * 2**20


@pytest.mark.parametrize("kind", ["an exception", "a wait for the device"])
def test_a_failed_capture_is_undone_and_decoding_goes_on(
    kind: str, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    original = DecodeGraphs._capture_one

    def failing(self: DecodeGraphs, size: int) -> None:
        if size == 8 and len(self._graphs) > 1:
            if kind == "an exception":
                raise RuntimeError("planted")
            head = self._head

            def waits(*args: torch.Tensor) -> torch.Tensor | None:
                ids = head(*args)
                if torch.cuda.is_current_stream_capturing():
                    ids.cpu()  # not allowed while recording
                return ids

            self._head = waits
        original(self, size)

    monkeypatch.setattr(DecodeGraphs, "_capture_one", failing)
    with pytest.warns(RuntimeWarning, match="capture failed"):
        llm = make("triton", "float32", False, 16, max_num_seqs=32)
    assert llm.model_runner.graphs is None
    assert tokens(llm, golden[0][:6]) == golden[1][:6]
    llm.exit()
    monkeypatch.undo()
    with make("triton", "float32", False, 16, max_num_seqs=32) as again:
        assert again.model_runner.graphs is not None
        assert tokens(again, golden[0][:6]) == golden[1][:6]


def test_refusals_leave_no_memory_and_no_default_behind() -> None:
    before = torch.get_default_dtype(), torch.cuda.memory_allocated()
    with pytest.raises(MemoryBudgetError, match="blocks fit"):
        LLM("qwen3-tiny", device="cuda", num_kvcache_blocks=10**9)
    with pytest.raises(MemoryBudgetError, match="no KV block fits"):
        LLM("qwen3-tiny", device="cuda", gpu_memory_utilization=0.001)
    with pytest.raises(BackendError, match="multiple of 256"):
        LLM("qwen3-tiny", device="cuda", dtype="bfloat16", attention_backend="flash_attn", kvcache_block_size=16)
    with pytest.raises(ConfigError, match="GPUs"):
        LLM("qwen3-tiny", device="cuda", tensor_parallel_size=8)
    gc.collect()
    torch.cuda.empty_cache()
    assert (torch.get_default_dtype(), torch.cuda.memory_allocated()) == before


def test_a_nearly_full_card_makes_a_small_pool_not_a_crash() -> None:
    """Another owner of the card's memory leaves 3 GiB; the engine's share would be far more."""
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(free - 3 * 2**30, dtype=torch.uint8, device="cuda")
    with LLM("qwen3-tiny", device="cuda", max_num_batched_tokens=2048, max_num_seqs=64) as llm:
        assert llm.generate(["count: 5 6 7 8"], GREEDY, use_tqdm=False)[0].text.startswith(" 9 10")
    del hog


def test_logits_of_the_published_shape_are_as_near_to_fp32_as_transformers(tmp_path: Path) -> None:
    """Qwen3-0.6B's shape, random weights, bf16: our error against fp32 is at most 1.2 times transformers' own."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        rope_theta=1000000.0,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    ids = torch.randint(0, 151936, (1, 300), device="cuda")

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        # Loaded anew each time: a model cast to bf16 keeps rounded rotary frequencies for ever.
        model = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=dtype).to("cuda").eval()
        with torch.inference_mode():
            return model(ids).logits[0].float()

    exact = theirs(torch.float32)
    error = (theirs(torch.bfloat16) - exact).norm() / exact.norm()
    for backend in ("triton", "flash_attn"):
        if backend == "flash_attn":
            pytest.importorskip("flash_attn")
        options = {"attention_backend": backend, "enforce_eager": True, "gpu_memory_utilization": 0.5}
        with LLM(str(tmp_path), skip_tokenizer_init=True, **options) as llm:
            assert llm.plan.dtype is torch.bfloat16
            runner = llm.model_runner
            captured: list[torch.Tensor] = []
            compute = runner.model.compute_logits

            def keep_all(hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor | None:
                captured.append(compute(hidden, replace(context, last_token_rows=None)))  # noqa: B023
                return compute(hidden, context)  # noqa: B023

            runner.model.compute_logits = keep_all
            llm.generate([ids[0].tolist()], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
            ours = captured[0].float()
        assert (ours - exact).norm() / exact.norm() <= 1.2 * error, backend
