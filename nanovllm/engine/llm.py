"""The public face: `LLM.generate` and `LLM.chat` over the engine's steps."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nanovllm.engine.collector import collector_spared
from nanovllm.engine.interrupt import interrupt_between_steps
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.outputs import RequestOutput
from nanovllm.engine.overlap import OverlappedLoop
from nanovllm.engine.progress import GenerationProgress
from nanovllm.engine.requests import Prompt, check_lists, encode_all
from nanovllm.errors import RequestError
from nanovllm.sampling_params import SamplingParams

ChatMessage = dict[str, str]


class LLM(LLMEngine):
    """Offline generation.

    llm = LLM("qwen3-tiny", max_num_seqs=8)
    outputs = llm.generate(["count: 1 2 3"], SamplingParams(temperature=0, max_tokens=20))
    print(outputs[0].text, outputs[0].finish_reason)
    """

    @collector_spared()
    def generate(
        self,
        prompts: Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt (text or token ids); outputs come in the order of the prompts.

        All prompts are checked before the first is queued (RequestError otherwise). When it is interrupted or fails,
        its own requests are cancelled. One that is cancelled from elsewhere (a hook, a thread's stop button between two
        steps) comes back with finish_reason "abort". Requests queued earlier with add_request run along; their
        outputs wait in `uncollected`.
        """
        texts, params = check_lists(prompts, sampling_params)
        encoded = encode_all(texts, self.tokenizer)
        checked = [self.check_request(prompt, p) for prompt, p in zip(encoded, params, strict=True)]
        outputs: dict[int, RequestOutput | None] = {}
        self._awaited = outputs  # so that a request cancelled from elsewhere is not waited for
        loop = OverlappedLoop(self, meanwhile=self._decode_ahead)
        progress = GenerationProgress(len(checked), enabled=use_tqdm)
        try:
            with interrupt_between_steps() as check_interrupt:
                for prompt, (token_ids, p) in zip(texts, checked, strict=True):
                    outputs[self._enqueue(prompt, token_ids, p)] = None
                for request_id in outputs:
                    while outputs[request_id] is None:
                        check_interrupt()
                        step = loop.step()
                        for output in step.finished:
                            home = outputs if output.request_id in outputs else self.uncollected
                            home[output.request_id] = output
                        progress.update(step)
        except BaseException:
            loop.cancel()
            for request_id in outputs:
                self.abort(request_id)
            raise
        finally:
            loop.cancel()
            self._awaited = {}
            progress.close()
        return [output for output in outputs.values() if output is not None]

    def _decode_ahead(self, is_time_up: Callable[[], bool]) -> None:
        self._texts.decode_ahead(self.scheduler.running, is_time_up)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, each a list of {"role": ..., "content": ...} messages.

        template_options go to the tokenizer's chat template (enable_thinking=False, say).
        """
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            raise RequestError("this checkpoint has no chat template: use generate() with your own prompt format")
        if not isinstance(messages, list | tuple) or not messages:
            raise RequestError('chat takes a list of messages such as [{"role": "user", "content": "Hello"}]')
        conversations = [messages] if isinstance(messages[0], dict) else list(messages)
        for message in (m for conversation in conversations for m in conversation):
            if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
                raise RequestError(f'a message needs "role" and "content", which {message!r} lacks')
        options = {"add_generation_prompt": True, **template_options, "tokenize": False}
        try:
            prompts = [self.tokenizer.apply_chat_template(c, **options) for c in conversations]
        except Exception as e:  # a template may refuse anything, with any exception
            raise RequestError(f"the chat template cannot write this conversation ({type(e).__name__}: {e})") from e
        return self.generate(prompts, sampling_params, use_tqdm)
