"""Five errors in DP-mu2-FL: one changed line of dp_mu2_numpy.py each, and where the checker finds them."""

from pathlib import Path

from check_vectors import Difference, check, load

ERRORS = {  # name: (line as it should be, line with the error, case)
    "noise taken back one round late": ("noises[t - 1][machines]", "noises[max(t - 2, 0)][machines]", "partial"),
    "divisor M for m": ('inputs["divisor"]', 'inputs["machines"]', "partial"),
    "projection before noise": (
        "w = projected(w - eta * (q + server_noise), radius)",
        "w = projected(w - eta * q, radius) - eta * server_noise",
        "server-full",
    ),
    "momentum weight t for t - 1": ("- (t - 1) * gradients(", "- t * gradients(", "partial"),
    "clip after the sum": (
        "np.linalg.norm(rows, axis=1, keepdims=True)",
        "np.linalg.norm(rows.sum(axis=0))",
        "partial",
    ),
}
SOURCE = Path(__file__).with_name("dp_mu2_numpy.py")


def wrong_step(error):
    """Return the `step` of dp_mu2_numpy.py with one of the errors."""
    right, wrong, _ = ERRORS[error]
    source = SOURCE.read_text(encoding="utf-8")
    if source.count(right) != 1:
        raise ValueError(f"{SOURCE.name} must have {right!r} once, got {source.count(right)}")
    names = {"__name__": error, "__file__": str(SOURCE)}
    exec(compile(source.replace(right, wrong), str(SOURCE), "exec"), names)
    return names["step"]


if __name__ == "__main__":
    vectors = load(SOURCE.with_name("dp_mu2.npz"))
    for name, (right, wrong, case) in ERRORS.items():
        try:
            check(vectors[case], wrong_step(name))
            found = "passes"
        except Difference as difference:
            found = str(difference)
        print(f"{name}, case {case}:\n  - {right}\n  + {wrong}\n  {found}")
