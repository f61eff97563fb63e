"""A text ends where the first stop string begins, in whatever pieces it comes."""

from hypothesis import given
from hypothesis import strategies as st

from nanovllm.serve.stop_strings import StopStrings


@given(text=st.text("abc", max_size=20), stops=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_stop_strings_cut_where_the_first_one_begins(text: str, stops: list[str]) -> None:
    found = [text.find(stop, 0) for stop in stops if stop in text]
    cutter = StopStrings(stops)
    got = "".join(cutter.add(character) for character in text) + cutter.finish()
    if not found:
        assert (got, cutter.found) == (text, False)
    else:
        assert cutter.found
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert got == text[: min(text[:ends].find(s) for s in stops if s in text[:ends])]
