"""One progress bar an experiment, on stderr."""

from types import TracebackType

from tqdm.auto import tqdm


class Progress:
    """Counts runs, warm-ups included. enabled None: only where stderr is a terminal."""

    def __init__(self, title: str, total: int, enabled: bool | None = None) -> None:
        disable = None if enabled is None else not enabled
        self._bar = tqdm(total=total, desc=title, unit="run", disable=disable, dynamic_ncols=True, leave=True)

    def say(self, what: str) -> None:
        """What runs now."""
        self._bar.set_postfix_str(what)

    def advance(self) -> None:
        """One run is done."""
        self._bar.update()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
