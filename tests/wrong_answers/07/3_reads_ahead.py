# symptom: old weights
# says: reads the weights anew
def train(server, gradient_of, steps):
    version, weights = server.rpc_sync().read()
    staleness = []
    for _ in range(steps):
        gradient = gradient_of(weights)
        following = server.rpc_sync().read()
        staleness.append(server.rpc_sync().update(gradient) - 1 - version)
        version, weights = following
    return staleness
