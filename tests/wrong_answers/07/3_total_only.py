# symptom: type
# says: returned a int
def train(server, gradient_of, steps):
    total = 0
    for _ in range(steps):
        version, weights = server.rpc_sync().read()
        total += server.rpc_sync().update(gradient_of(weights)) - 1 - version
    return total
