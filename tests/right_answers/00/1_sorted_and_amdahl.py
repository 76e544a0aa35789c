def read_profile(times: dict[str, list[float]], warm_up: int) -> tuple[str, float]:
    def middle(seconds):
        ordered = sorted(seconds)
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    typical = sorted((middle(seconds[warm_up:]), part) for part, seconds in times.items())
    rest = sum(seconds for seconds, _ in typical[:-1])
    return typical[-1][1], (rest + typical[-1][0]) / rest
