# symptom: all
# says: s more
def choose(kept_bytes, input_bytes, forward_s, limit_bytes):
    if sum(kept_bytes) <= limit_bytes:
        return []
    chosen = list(range(len(kept_bytes)))
    return chosen if sum(input_bytes) + max(kept_bytes) <= limit_bytes else None
