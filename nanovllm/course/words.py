"""What to think about: for each rule of the slot oracle that can be broken, and where code stopped with an error."""

from typing import Any

IN_YOUR_FILE = "Your code stopped before it had an answer. Read the error and go to its line: what is each name there?"
ON_ITS_ANSWER = "The error came after your code, in what uses its answer: has it the type and shape of the docstring?"
NOTHING = "There is None where an answer should be. Does each way through your function end in a return?"
ENDLESS = "Go through the loop by hand: what changes from one round to the next, and when does its condition end it?"

_THINK = {
    "blocks": "Count the owners of each block by hand: its reference count is that number, and it is free at 0.",
    "cache": "Which slot does position p go to? Follow the block table; then ask who else wrote there.",
    "cancel": "What is left of a cancelled request? Nothing may count or free it a second time.",
    "capacity": "There was room, and it was not used. Which comparison is off by one, or too careful?",
    "counts": "After each step, tokens that are cached, scheduled and known must fit together. Write the three down.",
    "crash": "Read the exception first, then paste the cell and look at the values just before it.",
    "deques": "Every unfinished request is in exactly one of the two deques. Where did this one get lost or doubled?",
    "end": "When is a request over? Check the counts after the new token is in.",
    "limits": "A limit was passed. What must it count: this step only, or all that runs?",
    "order": "Requests keep their order. At which end of the deque does this one come in or go out?",
    "prefix": "What was computed before was not found again. Which blocks are findable, and from when on?",
    "reasons": "What happened must be noted, with its kind, its request and the numbers.",
    "rollback": "A failed step is undone: the deques must look as they did before.",
    "slice": "Which tokens does the step feed in, from which position? Both follow from the counts.",
    "stall": "Nothing moved although requests are unfinished. What does the loop wait for?",
    "tokens": "The answer differs from that of the request alone. Which token is missing, doubled or another one's?",
}


def think_of(kind: str, otherwise: str) -> str:
    """A sentence for a broken rule of that kind."""
    return _THINK.get(str(kind), otherwise)


def think_of_outcome(observed: dict[str, Any], expected: str, think: str) -> str:
    """The words for a failed check: what is wrong about the answer as such comes first, then what the check says.

    observed: {"value": ...}, {"error": text as `errors.outcome_of` writes it} or {"not_done": text}; expected: the
    JSON text of the answer.
    """
    if "error" in observed:
        error = str(observed["error"])
        if " (line " in error:
            return f"{IN_YOUR_FILE} {think}"
        return f"{NOTHING if 'NoneType' in error else ON_ITS_ANSWER} {think}"
    if "null" in str(observed.get("value")) and "null" not in expected:
        return f"{NOTHING} {think}"
    return think
