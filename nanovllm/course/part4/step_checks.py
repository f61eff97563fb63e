"""What 4.1 runs: an engine on which one request is cancelled, one fails, one belongs to somebody else."""

# A small engine that can be closed; `tokens` and `params` are for requests.
MAKE = """\
from nanovllm import LLM, SamplingParams
from nanovllm.errors import NanoVLLMError, RequestError
def params(n):
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
limits = dict(kvcache_block_size=4, num_kvcache_blocks=16, max_num_batched_tokens=6, max_model_len=32)
llm = LLM("qwen3-tiny", device="cpu", skip_tokenizer_init=True, **limits)
"""
ORDER = (
    MAKE
    + """\
events = []
llm.on_event = events.append
llm.add_request([462, 28, 223], params(2))
llm.add_request([899, 28], params(1))
steps = [llm.step(), llm.step()]
result = [events, [[s.is_prefill, s.num_seqs, s.num_tokens, len(s.new_tokens)] for s in steps],
          [[o.request_id for o in s.finished] for s in steps], len(llm.last_schedule.seqs)]
llm.exit()"""
)
EVENTS = ["begin", "schedule", "run", "postprocess", "end"]
POLICY = (
    MAKE
    + """\
asked = []
def policy(scheduler):
    asked.append(len(scheduler.waiting))
    return scheduler.schedule()
llm.policy = policy
llm.add_request([462, 28, 223], params(1))
output = llm.step()
result = [asked, len(output.finished)]
llm.exit()"""
)
CLOSED = (
    MAKE
    + """\
llm.exit()
try:
    llm.step()
    result = "no error"
except NanoVLLMError:
    result = NanoVLLMError.__name__"""
)
CANCELLED = (
    MAKE
    + """\
first, second = (llm.add_request(prompt, params(1)) for prompt in ([462, 28], [899, 28]))
llm.on_event = lambda name: llm.abort(first) if name == "run" else None
output = llm.step()
result = [output.num_seqs, [request_id for request_id, token in output.new_tokens], len(llm.last_schedule.seqs)]
llm.exit()"""
)
FAILS = (
    MAKE
    + """\
llm.add_request([462, 28, 223], params(2))
def counts():
    pool = llm.scheduler.block_manager
    return [len(llm.scheduler.waiting), len(llm.scheduler.running), pool.num_free_blocks]
result = [counts()]
run = llm.ranks.run
for error in (RuntimeError, KeyboardInterrupt):
    def broken(*args):
        raise error
    llm.ranks.run = broken
    try:
        llm.step()
        result.append("no error")
    except error:
        result.append(error.__name__)
    result.append(counts())
llm.ranks.run = run
result.append([len(llm.step().new_tokens), len(llm.step().finished)])
llm.exit()"""
)
SLICES = (
    MAKE
    + """\
seen = []
run = llm.ranks.run
def watched(slices, is_prefill, inputs, live):
    rows = [[s.seq_id, s.start, len(s.token_ids)] for s in slices]
    seen.append([is_prefill, rows, inputs.position.tolist(), sorted(live)])
    return run(slices, is_prefill, inputs, live)
llm.ranks.run = watched
llm.add_request([462, 28, 223, 19], params(2))
llm.add_request([899, 28, 223, 27, 223], params(1))  # 6 tokens a step: two of it fit into the first one
tokens = []
for _ in range(3):
    schedule = llm.scheduler.schedule()
    token_ids = llm._run(schedule)
    tokens.append([token is not None for token in token_ids])
    llm.book(schedule, token_ids)
empty = llm._run(llm.scheduler.schedule())
result = [seen, tokens, empty]
llm.exit()"""
)
ENDS = (
    MAKE
    + """\
earlier = llm.add_request([462, 28, 223], params(9))
soon = llm.add_request([462, 28], params(1))
outputs = llm.generate([[899, 28], [899, 27], [899, 26]], [params(4), params(1), params(2)], use_tqdm=False)
answered, lengths = [o.prompt_token_ids[1] for o in outputs], [len(o.token_ids) for o in outputs]
result = [answered, lengths, sorted(llm.uncollected) == [soon], llm.is_finished()]
llm.exit()"""
)
REFUSED = (
    MAKE
    + """\
try:
    llm.generate([[462, 28], [999999]], params(2), use_tqdm=False)
    said = "no error"
except RequestError:
    said = "RequestError"
result = [said, llm.is_finished(), [o.token_ids for o in llm.generate([], use_tqdm=False)]]
llm.exit()"""
)
BREAKS = (
    MAKE
    + """\
earlier = llm.add_request([462, 28, 223], params(9))
run, calls = llm.ranks.run, []
def breaks_later(*args):
    calls.append(1)
    if len(calls) == 3:
        raise KeyboardInterrupt
    return run(*args)
llm.ranks.run = breaks_later
try:
    llm.generate([[899, 28], [899, 27]], params(5), use_tqdm=False)
    said = "no error"
except KeyboardInterrupt:
    said = "KeyboardInterrupt"
result = [said, sorted(llm.scheduler.sequences) == [earlier], len(calls)]
llm.exit()"""
)
