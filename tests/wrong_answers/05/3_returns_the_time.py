# symptom: unit
# says: these look like megabytes
from course_utils import predict


def best_bucket_bytes(layers, all_reduce_s):
    return min(predict.ddp_step(layers, all_reduce_s, bucket_bytes=k * 2**20).total_s for k in (1, 5, 25, 100))
