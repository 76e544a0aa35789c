def train(server, gradient_of, steps):
    staleness = []
    for _ in range(steps):
        version_read, weights = server.rpc_sync().read()
        version_after = server.rpc_sync().update(gradient_of(weights))
        staleness.append(version_after - version_read - 1)
    return staleness
