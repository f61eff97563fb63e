"""Bad input is refused with a sentence before anything is queued; the engine and other requests are as before."""

import copy
import inspect
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_idle, assert_same_greedy, greedy, make_llm, run_to_end, token_ids_of, write_checkpoint

from nanovllm import LLM, SamplingParams
from nanovllm.config import EngineConfig
from nanovllm.errors import BackendError, CheckpointError, ConfigError, MemoryBudgetError, NanoVLLMError, RequestError

Prompts = list[list[int]]
NAN, INF = float("nan"), float("inf")

WHOLE = "must be an integer"
NUMBER = "must be a number"
BOOL = "must be True or False"
LIMITS: list[tuple[str, Any, str]] = [
    *[(name, value, WHOLE) for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "kvcache_block_size",
      "num_kvcache_blocks", "tensor_parallel_size", "seed") for value in (1.0, 2.5, "8", True, [4], NAN, 4j)],
    *[(name, None, WHOLE) for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "kvcache_block_size",
      "tensor_parallel_size")],
    *[(name, value, "must be at least 1") for name in ("max_num_batched_tokens", "max_num_seqs", "kvcache_block_size",
      "num_kvcache_blocks") for value in (0, -1, -(2**70))],
    *[("max_model_len", value, "must be at least 2") for value in (1, 0, -5)],
    *[("tensor_parallel_size", value, "must be between 1 and 8") for value in (0, 9, -1, 10**30)],
    *[("prefill_graph_tokens", value, "must be at least 0") for value in (-1, -(2**70))],
    *[("prefill_graph_tokens", value, WHOLE) for value in (None, 1.0, "64", True)],
    *[("seed", value, "must be between 0 and") for value in (-1, 2**63)],
    *[(name, value, NUMBER) for name in ("gpu_memory_utilization", "cpu_kvcache_gib", "rank_timeout",
      "rank_start_timeout") for value in (0, -0.5, "0.5", None, True, NAN, INF, [0.5], 10**400)],
    ("gpu_memory_utilization", 1.01, "gpu_memory_utilization must be a number above 0 and at most 1, not 1.01"),
    *[(name, value, BOOL) for name in ("enforce_eager", "skip_tokenizer_init") for value in (0, 1, "yes", None)],
    *[("overlap", value, BOOL) for value in (0, 1, "yes")],
    *[("device", value, "device must be one of 'auto', 'cpu', 'cuda'") for value in ("gpu", "", None, 0)],
    *[("dtype", value, "dtype must be one of 'auto', 'float32'") for value in ("fp32", "int8", torch.float32, None)],
    *[("attention_backend", value, "attention_backend must be one of") for value in ("sdpa", "Torch", None, 3)],
    *[("load_format", value, "load_format must be one of 'auto', 'dummy'") for value in ("pt", None)],
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "sentence"), LIMITS)
def test_every_limit(tiny: Path, name: str, value: Any, sentence: str) -> None:
    """The message names the limit and says what it should be."""
    with pytest.raises(ConfigError, match=sentence) as caught:
        LLM(str(tiny), **{"device": "cpu", name: value})
    assert name in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_every_limit_is_tested() -> None:
    """A new limit needs its refusals here."""
    assert {name for name, _, _ in LIMITS} == set(EngineConfig.__dataclass_fields__) - {"model"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_num_seq", "did you mean 'max_num_seqs'"),
        ("max_model_length", "did you mean 'max_model_len'"),
        ("block_size", "did you mean 'kvcache_block_size'"),
        ("gpu_memory_utilisation", "did you mean 'gpu_memory_utilization'"),
        ("enforce_eagre", "did you mean 'enforce_eager'"),
        ("zzzz", "the engine options are max_num_batched_tokens"),
    ],
)
def test_an_unknown_limit_names_the_nearest(tiny: Path, name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown engine option '{name}': {hint}"):
        LLM(str(tiny), **{name: 1})


def test_integers_of_other_kinds_are_integers(tiny: Path) -> None:
    """What answers __index__ counts; it is kept as a plain int."""
    with make_llm(tiny, max_num_seqs=np.int64(3), kvcache_block_size=torch.tensor(4), seed=np.uint8(7)) as llm:
        assert [type(v) for v in (llm.config.max_num_seqs, llm.config.kvcache_block_size)] == [int, int]
        assert (llm.config.max_num_seqs, llm.config.kvcache_block_size, llm.config.seed) == (3, 4, 7)


def test_a_gpu_that_is_not_there(tiny: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="device 'cuda' was asked for and torch sees no GPU: use device='cpu'"):
        LLM(str(tiny), device="cuda")


@pytest.mark.parametrize("backend", ["triton", "flash_attn"])
def test_a_backend_that_cannot_run(tiny: Path, backend: str) -> None:
    with pytest.raises(BackendError, match=f"'{backend}' cannot run here: .*Usable here: torch"):
        make_llm(tiny, attention_backend=backend)


def test_a_pool_without_room_for_one_block(tiny: Path) -> None:
    with pytest.raises(MemoryBudgetError, match=r"no KV block fits: one of 400,?000 tokens") as caught:
        make_llm(tiny, num_kvcache_blocks=None, kvcache_block_size=400_000, cpu_kvcache_gib=0.01)
    assert "cpu_kvcache_gib on a CPU" in str(caught.value) or "raise cpu_kvcache_gib" in str(caught.value)


def test_a_pool_larger_than_the_machine(tiny: Path) -> None:
    with pytest.raises(MemoryBudgetError, match=r"num_kvcache_blocks 1,000,000,000,000 would take .* GiB"):
        make_llm(tiny, num_kvcache_blocks=10**12)


# --- sampling parameters --------------------------------------------------------------------------------------------

PARAMS: list[tuple[str, Any, str]] = [
    *[("temperature", value, NUMBER) for value in (-0.1, NAN, INF, -INF, "1", None, True, [1.0], 10**400, -(10**400))],
    *[("max_tokens", value, WHOLE) for value in (1.0, "5", None, True, [3])],
    *[("max_tokens", value, "must be at least 1") for value in (0, -1)],
    *[("ignore_eos", value, BOOL) for value in (0, 1, "no", None)],
    *[("top_k", value, WHOLE) for value in (1.0, "5", None, False)],
    *[("top_k", value, "must be between -1 and") for value in (-2, 2**31, 2**70)],
    *[("top_p", value, NUMBER) for value in (0, -0.1, 1.0001, NAN, "0.9", None, True)],
    *[("seed", value, WHOLE) for value in (1.0, "1", True)],
    *[("seed", value, "must be between 0 and") for value in (-1, 2**63)],
    *[("stop_token_ids", value, "must be a list of token ids") for value in ("12", 5, None)],
    *[("stop_token_ids", value, "a stop token id must be an integer") for value in ([1.5], ["a"], [None], [True])],
    ("stop_token_ids", [-1], "a stop token id must be at least 0"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), PARAMS)
def test_every_sampling_parameter(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value) or "stop token id" in str(caught.value)


def test_every_sampling_parameter_is_tested() -> None:
    assert {name for name, _, _ in PARAMS} == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_token", "did you mean 'max_tokens'"),
        ("max_new_tokens", "did you mean 'max_tokens'"),
        ("temp", "did you mean 'temperature'"),
        ("stop", "did you mean 'stop_token_ids'"),  # and not top_p, which is more alike
        ("n", "the sampling parameters are temperature, max_tokens, ignore_eos, top_k, top_p, seed, stop_token_ids"),
        ("logprobs", "the sampling parameters are temperature"),
    ],
)
def test_an_unknown_sampling_parameter_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(RequestError, match=f"unknown sampling parameter '{name}': {hint}"):
        SamplingParams(**{"max_tokens": 5, name: 1})


def test_sampling_parameters_are_an_ordinary_dataclass() -> None:
    """What refuses unknown names is in nobody's way: signature, copies, pickles."""
    params = SamplingParams(0.5, 7, seed=3)
    assert list(inspect.signature(SamplingParams).parameters) == list(SamplingParams.__dataclass_fields__)
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == replace(params) == params
    assert replace(params, seed=4) == SamplingParams(temperature=0.5, max_tokens=7, seed=4)
    assert not hasattr(params, "__dict__")


def test_edges_of_the_sampling_parameters_are_accepted() -> None:
    """The largest and smallest values that mean something, in the types that they are kept in."""
    params = SamplingParams(
        temperature=0, max_tokens=10**12, top_k=-1, top_p=1, seed=2**63 - 1, stop_token_ids=np.array([3, 4])
    )
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 0, 1.0)
    assert params.stop_token_ids == (3, 4)
    assert params.is_greedy
    assert SamplingParams(top_k=2**31 - 1, temperature=1e6, top_p=1e-9).top_k == 2**31 - 1


# --- prompts --------------------------------------------------------------------------------------------------------

BAD_PROMPTS: list[tuple[Any, str]] = [
    ([], "the prompt is empty"),
    ("", "the prompt is empty"),
    ([264], r"token id 264 is outside the vocabulary of 264: ids are 0 to 263"),
    ([1, -1], "token id -1 is outside the vocabulary"),
    ([1, 10**30], "outside the vocabulary"),
    ([1, 2.0], r"token ids must be integers; number 1 is 2\.0 \(float\)"),
    ([1, None, 3], r"number 1 is None \(NoneType\)"),
    (["a", "b"], r"number 0 is 'a' \(str\)"),
    ([True], r"number 0 is True \(bool\)"),
    ([[1, 2]], r"number 0 is \[1, 2\] \(list\)"),
    (None, "must be text or a list of token ids, not NoneType"),
    (b"bytes", "must be text or a list of token ids, not bytes"),
    ({"prompt": "x"}, "must be text or a list of token ids, not dict"),
    ({1, 2}, "must be text or a list of token ids, not set"),
    (2.5, "must be text or a list of token ids, not float"),
    (
        [1] * 512,
        r"prompt of 512 tokens leaves no room for a completion in max_model_len 512, and the checkpoint's limit "
        r"is 512: shorten it$",
    ),
    ([1] * 5000, r"prompt of 5,000 tokens leaves no room for a completion in max_model_len 512, and the checkpoint's"),
    ("x" * 600, r"prompt of 600 tokens leaves no room"),
    ("ab\udcff", r"the prompt is not valid Unicode text: '\\udcff' at position 2 is no character"),
    ([1] * 60, r"60 tokens with max_tokens 14 needs up to 19 KV blocks of 4 tokens and the whole pool has 18"),
]


@pytest.fixture
def small(tiny: Path) -> Iterator[LLM]:
    """An engine with a pool that the longest request does not fit, and a budget that makes long prompts wait."""
    with make_llm(tiny, num_kvcache_blocks=18, max_num_batched_tokens=16) as llm:
        yield llm


def check_intact(llm: LLM, judge: Any, prompts: Prompts, expected: Prompts, refuse: Any) -> None:
    """`refuse()` is refused while two requests run and one waits; nothing changes and all three come out right."""
    assert_idle(llm)
    chosen = [4, 2, 3]
    ids = [llm.add_request(prompts[n], greedy(14)) for n in chosen]
    got = {}
    for _ in range(3):
        got.update((o.request_id, o) for o in llm.step().finished)
    before = (
        llm.scheduler.snapshot(),
        llm.scheduler.block_manager.snapshot(),
        llm._next_request_id,
        dict(llm._metrics),
    )
    refuse()
    assert before == (
        llm.scheduler.snapshot(),
        llm.scheduler.block_manager.snapshot(),
        llm._next_request_id,
        dict(llm._metrics),
    )
    got.update(run_to_end(llm))
    assert_same_greedy(
        judge, [prompts[n] for n in chosen], [expected[n] for n in chosen], [got[i].token_ids for i in ids]
    )
    assert_idle(llm)


@pytest.mark.parametrize(("prompt", "sentence"), BAD_PROMPTS, ids=range(len(BAD_PROMPTS)))
def test_a_bad_prompt(small: LLM, judge: Any, prompts: Prompts, expected: Prompts, prompt: Any, sentence: str) -> None:
    """In add_request, in generate alone, and as the last of a list whose others are good."""

    def refuse() -> None:
        with pytest.raises(RequestError, match=sentence):
            small.add_request(prompt, greedy(14))
        with pytest.raises(RequestError, match=sentence):
            small.generate([prompt], greedy(14), use_tqdm=False)
        with pytest.raises(RequestError, match=sentence):
            small.generate([prompts[1], "good", prompt], greedy(14), use_tqdm=False)

    check_intact(small, judge, prompts, expected, refuse)


@pytest.mark.parametrize(
    ("tokens", "advice"),
    [
        (64, ": shorten it or raise max_model_len"),
        (511, ": shorten it or raise max_model_len"),
        (512, ", and the checkpoint's limit is 512: shorten it"),
    ],
)
def test_raising_max_model_len_is_advised_only_where_it_helps(tiny: Path, tokens: int, advice: str) -> None:
    """The checkpoint has 512 positions; max_model_len is 64, or what the advice says."""
    with make_llm(tiny, max_model_len=64) as llm:
        with pytest.raises(RequestError) as caught:
            llm.add_request([1] * tokens, greedy(14))
        sentence = f"prompt of {tokens} tokens leaves no room for a completion in max_model_len 64{advice}"
        assert str(caught.value) == sentence
        assert_idle(llm)
    if "raise" in advice:
        with make_llm(tiny, max_model_len=512) as llm:
            assert len(llm.generate([[1] * tokens], greedy(1), use_tqdm=False)[0].token_ids) == 1


GOOD = SamplingParams(max_tokens=2)
BAD_CALLS: list[tuple[tuple[Any, ...], str]] = [
    (("one prompt", GOOD), r"prompts must be a list, not str: for one prompt pass \[prompt\]"),
    ((b"bytes", GOOD), "prompts must be a list, not bytes"),
    (([1, 2, 3], GOOD), r"prompts is a list of integers: for one prompt of token ids pass \[token_ids\]"),
    ((np.array([1, 2, 3]), GOOD), "a prompt must be text or a list of token ids, not int64"),
    (({1, 2}, GOOD), "prompts must be a list, not set"),
    ((5, GOOD), "prompts must be a list, not int"),
    ((None, GOOD), "prompts must be a list, not NoneType"),
    (({"prompt": "x"}, GOOD), "prompts must be a list, not dict"),
    ((["a", "b"], [GOOD]), "2 prompts came with 1 sampling parameters: pass one each, or one for all"),
    ((["a"], [GOOD, GOOD]), "1 prompts came with 2 sampling parameters"),
    ((["a"], []), "1 prompts came with 0 sampling parameters"),
    (([], [GOOD]), "0 prompts came with 1 sampling parameters"),
    ((["a"], "greedy"), "sampling_params must be a SamplingParams or a list of them, not str"),
    ((["a"], 0.5), "sampling_params must be a SamplingParams or a list of them, not float"),
    ((["a"], {"temperature": 0}), "sampling_params must be a SamplingParams or a list of them, not dict"),
    ((["a", "b"], {"temperature": 0}), "sampling_params must be a SamplingParams or a list of them, not dict"),
    ((["a"], b"x"), "sampling_params must be a SamplingParams or a list of them, not bytes"),
    ((["a", "b"], [GOOD, {"temperature": 0}]), "sampling_params must be a SamplingParams, not dict"),
    ((["a", "b"], [GOOD, "x"]), "sampling_params must be a SamplingParams, not str"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_a_bad_call_of_generate(
    small: LLM, judge: Any, prompts: Prompts, expected: Prompts, arguments: tuple[Any, ...], sentence: str
) -> None:
    def refuse() -> None:
        with pytest.raises(RequestError, match=sentence):
            small.generate(*arguments, use_tqdm=False)

    check_intact(small, judge, prompts, expected, refuse)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ("hello", "chat takes a list of messages"),
        ([], "chat takes a list of messages"),
        (["hello"], "a message needs"),
        ([{"role": "user"}], 'a message needs "role" and "content"'),
        ([[{"role": "user", "content": "a"}], [{"content": "b"}]], 'a message needs "role" and "content"'),
        (5, "chat takes a list of messages"),
        ({"role": "user", "content": "a"}, "chat takes a list of messages"),
        ([[]], "the chat template cannot write this conversation"),
        ([{"role": 5, "content": "a"}], "the chat template cannot write this conversation"),
        ([{"role": "user", "content": None}], "the chat template cannot write this conversation"),
    ],
)
def test_a_bad_chat(small: LLM, judge: Any, prompts: Prompts, expected: Prompts, messages: Any, sentence: str) -> None:
    def refuse() -> None:
        with pytest.raises(RequestError, match=sentence):
            small.chat(messages, GOOD)

    check_intact(small, judge, prompts, expected, refuse)


def test_no_prompts_are_no_outputs(small: LLM) -> None:
    assert small.generate([], GOOD, use_tqdm=False) == []
    assert small.generate([], [], use_tqdm=False) == []


def test_text_without_a_tokenizer(tiny: Path) -> None:
    with make_llm(tiny, skip_tokenizer_init=True) as llm:
        with pytest.raises(RequestError, match="this engine has no tokenizer: pass the prompt as a list of token ids"):
            llm.generate(["text"], GOOD, use_tqdm=False)
        with pytest.raises(RequestError, match="this checkpoint has no chat template"):
            llm.chat([{"role": "user", "content": "x"}])
        output = llm.generate([[1, 2]], GOOD, use_tqdm=False)[0]
        assert (len(output.token_ids), output.text) == (2, "")


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda ids: map(int, ids)])
def test_token_ids_of_every_kind(small: LLM, prompts: Prompts, expected: Prompts, make: Any) -> None:
    """A list, a tuple, an array, a tensor or an iterator of integers is a prompt."""
    output = small.generate([make(prompts[4])], greedy(14), use_tqdm=False)[0]
    assert output.prompt_token_ids == prompts[4]
    assert all(type(t) is int for t in output.prompt_token_ids)
    assert output.token_ids == expected[4]


def test_the_largest_request_that_fits_is_accepted(tiny: Path) -> None:
    """The last token is never fed in, so 8 slots carry 9 tokens; one more is refused, naming both numbers."""
    with make_llm(tiny, num_kvcache_blocks=2) as llm:
        output = llm.generate([[1, 2, 3, 4, 5]], greedy(4), use_tqdm=False)[0]
        assert len(output.token_ids) == 4
        with pytest.raises(RequestError, match="needs up to 3 KV blocks of 4 tokens and the whole pool has 2"):
            llm.generate([[1, 2, 3, 4, 5]], greedy(5), use_tqdm=False)
        with pytest.raises(RequestError, match="a prompt of 9 tokens with max_tokens 1 needs up to 3 KV blocks"):
            llm.add_request([1] * 9, greedy(1))
        assert_idle(llm)


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["", "no-such-folder", "./owner/name", "/nowhere/at/all", "a/b/c", None, 7])
def test_neither_folder_nor_hub_id(model: Any) -> None:
    with pytest.raises(CheckpointError, match=re.escape(f"no checkpoint '{model}': it is no folder here, no hub id")):
        LLM(model)


def test_a_hub_id_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(repo: str, **_: Any) -> str:
        raise OSError("offline mode is enabled")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(
        CheckpointError, match=r"cannot get 'Qwen/Qwen3-0\.6B' from the Hugging Face hub \(OSError: off"
    ):
        LLM("Qwen/Qwen3-0.6B")


def test_a_hub_id(monkeypatch: pytest.MonkeyPatch, tiny: Path, prompts: Prompts, expected: Prompts) -> None:
    """Only the files that are read are asked for."""
    asked: dict[str, Any] = {}

    def download(repo: str, allow_patterns: list[str]) -> str:
        asked.update(repo=repo, patterns=allow_patterns)
        return str(tiny)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with LLM("owner/name", device="cpu", num_kvcache_blocks=4) as llm:
        assert token_ids_of(llm.generate(prompts[:1], greedy(14), use_tqdm=False)) == expected[:1]
    assert asked["repo"] == "owner/name"
    assert "*.safetensors" in asked["patterns"]
    assert "*.bin" not in asked["patterns"]


def test_a_closed_engine(tiny: Path) -> None:
    llm = make_llm(tiny)
    llm.exit()
    llm.exit()
    llm.close()
    for call in (llm.step, lambda: llm.add_request([1]), lambda: llm.generate([[1]], use_tqdm=False)):
        with pytest.raises(NanoVLLMError, match="this engine is closed: build a new one"):
            call()


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_side_file(tmp_path: Path, name: str, text: str) -> None:
    """A broken download of the small files is named too."""
    folder = write_checkpoint(tmp_path, tokenizer=True)
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"download the checkpoint again"):
        make_llm(folder)


@pytest.mark.parametrize("ids", ['"x"', "true", "-1", "[1, [2]]", "1.5"])
def test_end_of_sequence_ids_that_are_none(tmp_path: Path, ids: str) -> None:
    folder = write_checkpoint(tmp_path, tokenizer=True)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id must be a token id or a list"):
        make_llm(folder)
