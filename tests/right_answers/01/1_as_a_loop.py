def winners() -> dict[str, str]:
    leaves_out_work = {"a", "d"}
    has_tensors = {"a", "b", "d"}
    return {f: "script" if f in leaves_out_work else "equal" if f in has_tensors else "eager" for f in "abcde"}
