# symptom: old weights
# says: weights of versions 7, 7
def train(server, gradient_of, steps):
    version, weights = server.rpc_sync().read()
    staleness = []
    for _ in range(steps):
        after = server.rpc_sync().update(gradient_of(weights))
        staleness.append(after - 1 - version)
        version = after
    return staleness
