NAMES = {(False, False): "plain", (False, True): "every second block", (True, True): "each block"}


def program(curve):
    after_1, after_2, *_, begin_2, _, begin_1, _ = curve
    if after_2 == after_1:
        return "one around all"
    return NAMES[begin_1 > after_1, begin_2 > after_2]
