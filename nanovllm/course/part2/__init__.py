"""The exercises of part 2, the paged KV cache: hints, checks and planted bugs, one module an exercise."""

from nanovllm.course.exercise import Exercise
from nanovllm.course.part2 import ex01, ex02, ex03, ex04, ex05, ex06, ex07, ex08

EXERCISES: tuple[Exercise, ...] = tuple(m.EXERCISE for m in (ex01, ex02, ex03, ex04, ex05, ex06, ex07, ex08))
