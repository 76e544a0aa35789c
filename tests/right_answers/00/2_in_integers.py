from fractions import Fraction


def ranks_needed(serial_s, split_s, deadline_s):
    left = Fraction(str(deadline_s)) - Fraction(str(serial_s))
    if left < 0:
        return None
    if left == 0:
        return 1 if split_s == 0 else None
    return max(1, -(-Fraction(str(split_s)) // left))
