"""The merging of byte pairs, quick on long runs too: for the tokenizer of the static edition.

That tokenizer, in pure Python, looks at all pairs again after each merge. For a run of a hundred
thousand brackets, which chapter 15 sends, that is hours; with a heap it is a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush


def byte_pair_encode(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """The tokens of a piece: of all adjacent pairs the one of lowest rank is joined, until none is.

    Of equal ranks the leftmost comes first. A part is known by where it begins.
    """
    size = len(piece)
    end = list(range(1, size + 1))  # where each part ends; 0 for one that was joined to its left
    left = list(range(-1, size))  # where the part before it begins
    waiting: list[tuple[int, int, int]] = []  # rank, begin and end of a pair

    def pair(begin: int, stop: int) -> None:
        rank = ranks.get(piece[begin:stop])
        if rank is not None:
            heappush(waiting, (rank, begin, stop))

    for begin in range(size - 1):
        pair(begin, begin + 2)
    while waiting:
        _, begin, stop = heappop(waiting)
        middle = end[begin]
        # A pair is out of date when one of its parts has been joined to another.
        if not begin < middle < stop or end[middle] != stop:
            continue
        end[begin], end[middle] = stop, 0
        if stop < size:
            left[stop] = begin
            pair(begin, end[stop])
        if begin > 0:
            pair(left[begin], stop)
    return [ranks[piece[begin:stop]] for begin, stop in enumerate(end) if stop]
