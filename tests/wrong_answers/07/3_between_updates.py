# symptom: wrong
# says: not what the server saw
def train(server, gradient_of, steps):
    staleness, last = [], 0
    for _ in range(steps):
        version, weights = server.rpc_sync().read()
        after = server.rpc_sync().update(gradient_of(weights))
        staleness.append(after - last - 1 if last else 0)
        last = version
    return staleness
