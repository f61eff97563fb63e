"""The tiny checkpoint, for what needs a whole runner."""

from fixtures import tiny as tiny
