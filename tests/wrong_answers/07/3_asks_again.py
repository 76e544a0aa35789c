# symptom: reads
# says: was read 10 times
def train(server, gradient_of, steps):
    staleness = []
    for _ in range(steps):
        weights = server.rpc_sync().read()[1]
        gradient = gradient_of(weights)
        version = server.rpc_sync().read()[0]
        staleness.append(server.rpc_sync().update(gradient) - 1 - version)
    return staleness
