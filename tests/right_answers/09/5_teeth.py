def program(curve: list[float]) -> str:
    """A tooth is a rise in backward."""
    n = len(curve) // 3
    if max(curve[:n]) == min(curve[:n]):
        return "one around all"
    teeth = sum(curve[k] > curve[k - 1] for k in range(n, 3 * n, 2))
    if teeth == n:
        return "each block"
    return "every second block" if teeth else "plain"
