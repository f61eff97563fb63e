"""Extract public-domain prose (six Austen novels) from Debian's `r-cran-janeaustenr` package.

The package stores each novel as an R character vector (one string a line) in a "lazy data" file: a run of records,
each a 4-byte big-endian length followed by a zlib stream that holds one object in R's XDR serialisation. R is not
needed to read it.

    apt-get download r-cran-janeaustenr
    python -m training.prose r-cran-janeaustenr_*.deb .corpus
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

STRING_VECTOR, CHAR, PAIRLIST = 16, 9, 2


def records(blob: bytes) -> Iterator[bytes]:
    """Yield the decompressed records of an `.rdb` file in order."""
    at = 0
    while at + 4 < len(blob):
        (size,) = struct.unpack(">I", blob[at : at + 4])
        inflater = zlib.decompressobj()
        data = inflater.decompress(blob[at + 4 :])
        if len(data) != size:
            raise ValueError(f"The record at byte {at} should inflate to {size} bytes but gave {len(data)}.")
        yield data
        at = len(blob) - len(inflater.unused_data)


def string_vector(record: bytes) -> list[str] | None:
    """Return the strings of a serialised R character vector, or None when the record holds something else."""
    if record[:2] != b"X\n":
        raise ValueError("The record is not in R's XDR serialisation: it does not start with 'X' and a newline.")
    (version,) = struct.unpack(">i", record[2:6])
    at = 14
    if version >= 3:
        (name_length,) = struct.unpack(">i", record[at : at + 4])
        at += 4 + name_length
    flags, count = struct.unpack(">Ii", record[at : at + 8])
    at += 8
    if flags & 0xFF != STRING_VECTOR:
        return None
    lines: list[str] = []
    for _ in range(count):
        char_flags, length = struct.unpack(">Ii", record[at : at + 8])
        if char_flags & 0xFF != CHAR:
            raise ValueError(f"A string vector holds an item of type {char_flags & 0xFF} at byte {at}.")
        at += 8
        lines.append(record[at : at + max(length, 0)].decode("utf-8"))
        at += max(length, 0)
    return lines


def paragraphs(lines: list[str]) -> str:
    """Join hard-wrapped lines into paragraphs, one blank line between two of them."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line.strip())
        elif blocks[-1]:
            blocks.append([])
    return "\n\n".join(" ".join(block) for block in blocks if block) + "\n"


def extract(package: Path, folder: Path) -> list[Path]:
    """Unpack a Debian package and write each novel in it as one text file into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["dpkg-deb", "-x", str(package), scratch], check=True)
        for rdb in sorted(Path(scratch).rglob("*.rdb")):
            for record in records(rdb.read_bytes()):
                lines = string_vector(record)
                if lines is None or len(lines) < 1000:
                    continue
                path = folder / f"novel_{len(written)}.txt"
                path.write_text(paragraphs(lines), encoding="utf-8")
                written.append(path)
    if not written:
        raise ValueError(f"No novel was found in {package}.")
    return written


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("Usage: python -m training.prose PACKAGE.deb FOLDER")
    for novel in extract(Path(sys.argv[1]), Path(sys.argv[2])):
        print(novel, novel.stat().st_size, "bytes")
