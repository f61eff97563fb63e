"""Text becomes tokens in a thread of its own, so that a long prompt holds up neither the engine nor the connections."""

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nanovllm.engine.requests import Prompt, encode
from nanovllm.errors import RequestError
from nanovllm.serve.errors import ApiError
from nanovllm.serve.protocol import Ask


class Encoder:
    """Prompts and chats to token ids, one after another, with a tokenizer that no other thread uses."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def encode(self, ask: Ask) -> Prompt:
        """The token ids of a prompt or of a chat put through the checkpoint's template. Raises ApiError 400."""
        if ask.prompt is not None and not isinstance(ask.prompt, str):
            return ask.prompt  # token ids already; the engine checks them
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, ask)

    def _encode(self, ask: Ask) -> list[int]:
        try:
            text = str(ask.prompt) if ask.messages is None else self._render(ask.messages)
            return encode(text, self._tokenizer)
        except ApiError:
            raise
        except RequestError as refusal:
            raise ApiError(400, str(refusal), "invalid_value") from None
        except Exception as error:  # a template that refuses the messages
            raise ApiError(400, f"the tokenizer refused this text: {type(error).__name__}: {error}") from None

    def _render(self, messages: list[dict[str, str]]) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            sentence = "this checkpoint has no chat template: use /v1/completions with your own prompt format"
            raise ApiError(400, sentence, "no_chat_template")
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
