"""The exercises of part 4, the whole engine: hints, checks and planted bugs, one module an exercise."""

from nanovllm.course.exercise import Exercise
from nanovllm.course.part4 import ex01, ex02, ex03, ex04, ex05

EXERCISES: tuple[Exercise, ...] = tuple(m.EXERCISE for m in (ex01, ex02, ex03, ex04, ex05))
