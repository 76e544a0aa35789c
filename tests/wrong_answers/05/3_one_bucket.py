# symptom: too large
# says: hides too little
def best_bucket_bytes(layers, all_reduce_s):
    return sum(layer.nbytes for layer in layers)
