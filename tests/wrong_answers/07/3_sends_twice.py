# symptom: updates
# says: got 10 updates
def train(server, gradient_of, steps):
    staleness = []
    for _ in range(steps):
        version, weights = server.rpc_sync().read()
        gradient = gradient_of(weights)
        server.rpc_sync().update(gradient)
        staleness.append(server.rpc_sync().update(gradient) - 1 - version)
    return staleness
