"""What a look at files gave, so that files that nobody wrote to since need not be read again.

The rooms that read a target's files are handed a memo; the store's is `tasks/store/digests.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Reads; gives plain JSON, and every file that it depends on.
Read = Callable[[], tuple[Any, Sequence[Path]]]
#: (what is asked, the file it is asked of, how to find out) -> the answer, remembered or read now.
Memo = Callable[[str, Path, Read], Any]


def no_memo(what: str, path: Path, read: Read) -> Any:
    """The memo that remembers nothing."""
    return read()[0]
