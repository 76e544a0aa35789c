# symptom: length
# says: returned 4 numbers
def train(server, gradient_of, steps):
    versions = []
    for _ in range(steps):
        version, weights = server.rpc_sync().read()
        versions.append((version, server.rpc_sync().update(gradient_of(weights))))
    return [after - 1 - version for version, after in versions[:-1]]
