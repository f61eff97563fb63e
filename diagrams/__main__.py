"""Draw every diagram (or those named) into `diagrams/svg/`: `python -m diagrams [NAME ...]`."""

import sys

from diagrams import FOLDER, all_diagrams


def main(names: list[str]) -> int:
    """Write the files; 1 if a name is unknown."""
    known = {diagram.name: diagram for diagram in all_diagrams()}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.stderr.write(f"there is no diagram {unknown[0]!r}; the diagrams are {', '.join(known)}\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name in names or known:
        path = FOLDER / f"{name}.svg"
        path.write_text(known[name].svg(), encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(FOLDER.parent.parent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
