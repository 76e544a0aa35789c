from collections.abc import Callable

from course_utils import predict


def best_bucket_bytes(layers: list[predict.Layer], all_reduce_s: Callable[[float], float]) -> float:
    sizes, total = [], 0.0
    for layer in reversed(layers):
        total += layer.nbytes
        sizes.append(total)
    sizes += [total / k for k in range(2, 60)]
    return min(sizes, key=lambda size: predict.ddp_step(layers, all_reduce_s, bucket_bytes=size).total_s)
