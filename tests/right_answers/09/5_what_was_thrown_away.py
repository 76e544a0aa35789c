def program(curve):
    n = len(curve) // 3
    forward = list(curve[:n])
    held = {}  # as the backward of each block is about to begin: what's left after the one behind it
    for block in range(n):
        held[block] = forward[-1] if block == n - 1 else curve[n + 1 + 2 * (n - 2 - block)]
    begins = {block: curve[n + 2 * (n - 1 - block)] for block in range(n)}
    computed = [block for block in range(n) if begins[block] > held[block]]
    if computed == []:
        return "plain"
    if computed == [n - 1] and len(set(forward)) == 1:
        return "one around all"
    if computed == list(range(n)):
        return "each block"
    assert computed == list(range(1, n, 2))
    return "every second block"
