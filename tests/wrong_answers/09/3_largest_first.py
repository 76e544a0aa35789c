# symptom: not the best
# says: s more
def choose(kept_bytes, input_bytes, forward_s, limit_bytes):
    n, chosen = len(kept_bytes), []

    def held():
        return sum(input_bytes[i] if i in chosen else kept_bytes[i] for i in range(n)) + max((kept_bytes[i] for i in chosen), default=0)

    for i in sorted(range(n), key=lambda i: -kept_bytes[i]):
        if held() <= limit_bytes:
            break
        chosen.append(i)
    return sorted(chosen) if held() <= limit_bytes else None
