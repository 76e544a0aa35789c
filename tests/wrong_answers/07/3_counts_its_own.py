# symptom: off by one
# says: one too many
def train(server, gradient_of, steps):
    staleness = []
    for _ in range(steps):
        version_read, weights = server.rpc_sync().read()
        staleness.append(server.rpc_sync().update(gradient_of(weights)) - version_read)
    return staleness
