# symptom: always zero
# says: said to be fresh
def train(server, gradient_of, steps):
    staleness = []
    for _ in range(steps):
        version, weights = server.rpc_sync().read()
        server.rpc_sync().update(gradient_of(weights))
        staleness.append(0)
    return staleness
