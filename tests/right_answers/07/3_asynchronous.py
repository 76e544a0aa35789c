def train(server, gradient_of, steps):
    reads, afters = [], []
    for _ in range(steps):
        version, weights = server.rpc_async().read().wait()
        reads.append(version)
        afters.append(server.rpc_async().update(gradient_of(weights)).wait())
    return [after - (version + 1) for version, after in zip(reads, afters, strict=True)]
