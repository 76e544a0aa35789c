# symptom: unit
# says: these look like megabytes
from course_utils import predict


def best_bucket_bytes(layers, all_reduce_s):
    return min((0.5, 1, 2, 5, 10, 25, 50, 100, 200), key=lambda mb: predict.ddp_step(layers, all_reduce_s, bucket_bytes=mb * 2**20).total_s)
