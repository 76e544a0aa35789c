# symptom: too small
# says: pays too many latencies
def best_bucket_bytes(layers, all_reduce_s):
    return min(layer.nbytes for layer in layers)
