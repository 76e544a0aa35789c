# Python's own generator, seeded by a text: that is the same in every process, other than `hash`. Blocks of a padded order.
import random
from itertools import chain, islice, repeat


def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
    order = list(range(n_samples))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    each, rest = divmod(n_samples, world_size)
    each += bool(rest) and not drop_last
    dealt = list(islice(chain.from_iterable(repeat(order)), each * world_size))
    return dealt[rank * each : rank * each + each]
