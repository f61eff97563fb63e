"""Ctrl-C between steps, not inside one, so that no request is lost half-way through the scheduler."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_between_steps() -> Iterator[Callable[[], None]]:
    """Hold back the first SIGINT; the yielded function raises KeyboardInterrupt if one came. A second acts at once.

    Only the main thread can do this, and only while Python's own handler is installed; elsewhere nothing changes.
    """
    held = False

    def hold(signum: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    def check() -> None:
        if held:
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
