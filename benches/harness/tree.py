"""Files to serve. Their content is a stretch of one repeated pattern, so that a client can check any byte of any file
without holding the files."""

import contextlib
import pathlib
import random
import shutil
import tempfile

PATTERN_BYTES = 65521  # A prime: stretches that begin at different places differ.


class Tree:
    """A directory of files in a temporary place."""

    def __init__(self, directory):
        self.pattern = random.Random(20000813).randbytes(PATTERN_BYTES)
        self.root = directory / "root"
        self.root.mkdir()

    def content(self, size_bytes, pattern_offset=0):
        """Content of a file of this size."""
        offset = pattern_offset % PATTERN_BYTES
        block = self.pattern[offset:] + self.pattern[:offset]
        return block * (size_bytes // PATTERN_BYTES) + block[: size_bytes % PATTERN_BYTES]

    def add(self, name, size_bytes, pattern_offset=0):
        """Writes a file; returns its path in a URL."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.content(size_bytes, pattern_offset))
        return f"/{name}"

    def add_text(self, name, size_bytes):
        """Writes a page of HTML with random words and numbers; returns its path in a URL."""
        numbers = random.Random(size_bytes)
        words = ["".join(numbers.choices("aeinorstlcdu", k=numbers.randint(2, 11))) for _ in range(2000)]
        rows = ["<!doctype html>\n<html lang=\"en\">\n<title>Orders</title>\n<table>\n"]
        while sum(map(len, rows)) < size_bytes:
            text = " ".join(numbers.choices(words, k=numbers.randint(4, 14)))
            order = numbers.randrange(10**7)
            rows.append(f'<tr class="row"><td><a href="/orders/{order}">{order}</a></td><td class="text">{text}</td>'
                        f'<td class="price">{numbers.randrange(10**5) / 100:.2f}</td></tr>\n')
        (self.root / name).write_text("".join(rows)[:size_bytes])
        return f"/{name}"


@contextlib.contextmanager
def temporary(parent=None):
    """A tree that is removed at the end. `parent` must be on a disk for the scenarios that read from one."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="bench.tree.", dir=parent))
    directory.chmod(0o755)
    try:
        yield Tree(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
