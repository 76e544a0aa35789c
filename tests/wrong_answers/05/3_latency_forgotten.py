# symptom: too small
# says: pays too many latencies
from course_utils import predict


def best_bucket_bytes(layers, all_reduce_s):
    bandwidth = all_reduce_s.bandwidth_Bps
    sizes = [layer.nbytes * k for layer in layers for k in (1, 2, 4, 8, 1000)]
    return min(sorted(sizes), key=lambda size: predict.ddp_step(layers, lambda nbytes: nbytes / bandwidth, bucket_bytes=size).total_s)
