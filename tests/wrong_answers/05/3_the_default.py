# symptom: same everywhere
# says: The answer is 25 MB for every table
def best_bucket_bytes(layers, all_reduce_s):
    return 25 * 2**20
