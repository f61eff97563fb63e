"""Exercises, oracles and the grader. Looks at the engine; nothing in the engine imports it."""
