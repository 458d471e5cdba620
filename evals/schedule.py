"""The order of the questions: the same for all arms up to a block, and random within one.

Whatever drifts during a run (load, clocks, thermal state) then meets all arms alike. A block is a
few items, asked in every arm; the pairs (arm, item) of a block come in random order.
"""

import random
from collections.abc import Sequence
from itertools import product

__all__ = ["interleave"]


def interleave(n_arms: int, n_items: int, *, block_items: int, seed: int) -> list[list[tuple[int, int]]]:
    """Random blocks of (arm index, item index).

    Parameters
    ----------
    n_arms, n_items : int
        Every arm gets every item once.
    block_items : int
        Items in a block; the last block may hold fewer.
    seed : int
        Fixes both the order of the items and that within the blocks.

    Returns
    -------
    list of list of (int, int)
        In any prefix of the whole schedule the numbers of items asked in two arms differ by at
        most ``block_items``.
    """
    rng = random.Random(f"schedule:{seed}")
    items = list(range(n_items))
    rng.shuffle(items)
    blocks = []
    for first in range(0, n_items, block_items):
        chosen: Sequence[int] = items[first : first + block_items]
        pairs = list(product(range(n_arms), chosen))
        rng.shuffle(pairs)
        blocks.append(pairs)
    return blocks
