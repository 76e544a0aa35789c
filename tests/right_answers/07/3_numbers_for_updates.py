def lost(log):
    """Plays the log with weights that show what's in them: update k adds 2**k."""
    weights = {0: 0}
    log = sorted(log, key=lambda line: line[-1])
    for _, read, wrote in log:
        weights[wrote] = weights[read] + 2**wrote
    found = {}
    for _, _, update in log:
        has = [bool(weights[version] >> update & 1) for version in range(len(log) + 1)]
        if not has[-1]:
            after = len(has) - has[::-1].index(True)
            found[update] = log[after - 1][0]
    return found
