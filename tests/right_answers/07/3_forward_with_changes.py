def lost(log):
    parent = {wrote: read for _, read, wrote in log}
    trainer = {wrote: who for who, _, wrote in log}

    def way(version):
        there = set()
        while version:
            there.add(version)
            version = parent[version]
        return there

    out = {}
    now = set()
    for version in range(1, len(log) + 1):
        then = way(version)
        for update in now - then:
            out[update] = trainer[version]
        for update in then:
            out.pop(update, None)
        now = then
    return out
