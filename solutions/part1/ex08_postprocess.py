"""1.8 Postprocess: book the step that just ran.

The forward pass has computed the K/V of each scheduled token, and the sampler has chosen a next token for each request
whose last known token was among them. Example: a request with the prompt [5, 6, 7], all of it scheduled (is_prefill),
block_size 2, and the sampled token 9:

    before: num_tokens 3, num_cached_tokens 0, num_scheduled_tokens 3
    after:  num_tokens 4, num_cached_tokens 3, num_scheduled_tokens 0; block 0 is published, and the tokens are 5 6 7 9

The 9 is not cached: its K/V are computed when the next step feeds it in.
"""

from collections import deque

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.scheduler import DecisionKind, FinishReason, Scheduler, Sequence


def postprocess(scheduler: Scheduler, seqs: list[Sequence], token_ids: list[int | None], is_prefill: bool) -> None:
    """Book the step for each of `seqs`: count what is cached now, publish, append the token, end what is done.

    token_ids: [len(seqs)]; None where a chunk did not reach the end of its prompt, so that nothing was sampled.
    A request that was cancelled while the step ran (seq.is_finished) is skipped: its blocks are gone.

    For each other one: num_scheduled_tokens are added to num_cached_tokens and set to 0. Then
    scheduler.block_manager.publish(seq, num_cached_before) makes the blocks that are full now findable. In a prefill of
    a request with num_preemptions > 0, seq.num_recomputed_tokens grows by the tokens computed in this step, the newest
    one left out. A token goes in with seq.append_token(token_id); if scheduler._finish_reason(seq, token_id) then gives
    a reason, note it: scheduler._note(DecisionKind.FINISH, seq, why=reason.value, tokens=seq.num_completion_tokens);
    call scheduler._finish(seq, reason), which frees its blocks, and take it out of scheduler.running.
    """
    # stub: raise ExerciseNotDone("1.8 postprocess", "zip(seqs, token_ids) goes through the batch; skip the finished")
    # solution: begin
    for seq, token_id in zip(seqs, token_ids, strict=True):
        if seq.is_finished:
            continue
        before = seq.num_cached_tokens
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if is_prefill and seq.num_preemptions:
            # The newest token was sampled but never fed in before the preemption, so it is not computed *again*.
            seq.num_recomputed_tokens += min(seq.num_cached_tokens, seq.num_tokens - 1) - before
        # Only now: a block that others find before its K/V exist would serve them garbage.
        scheduler.block_manager.publish(seq, before)
        if token_id is None:
            continue
        seq.append_token(token_id)
        reason = scheduler._finish_reason(seq, token_id)
        if reason is not None:
            scheduler._note(DecisionKind.FINISH, seq, why=reason.value, tokens=seq.num_completion_tokens)
            scheduler._finish(seq, reason)
    scheduler.running = deque(seq for seq in scheduler.running if not seq.is_finished)
    # solution: end


def finish_reason(scheduler: Scheduler, seq: Sequence, token_id: int) -> FinishReason | None:
    """Why `seq` ends with `token_id`, which was appended just now, or None if it goes on.

    FinishReason.STOP: the token is in params.stop_token_ids, or in scheduler.eos_token_ids unless params.ignore_eos,
    where params = seq.sampling_params. FinishReason.LENGTH: it has params.max_tokens completion tokens, or
    scheduler.max_model_len tokens in all. When both hold it is STOP.
    By hand: max_tokens 3 and two completion tokens -> None; with the third one -> LENGTH.
    """
    # stub: raise ExerciseNotDone("1.8 postprocess", "a stop token always counts, an end-of-sequence token not always")
    # solution: begin
    params = seq.sampling_params
    if token_id in params.stop_token_ids or (token_id in scheduler.eos_token_ids and not params.ignore_eos):
        return FinishReason.STOP
    if seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= scheduler.max_model_len:
        return FinishReason.LENGTH
    return None
    # solution: end
