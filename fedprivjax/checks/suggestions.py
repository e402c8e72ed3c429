"""Suggestions for misspelt, former and other libraries' names, in messages about unknown ones."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

NEAREST = 3
OTHER_WORDS: dict[str, tuple[str, str]] = {  # names in other libraries: the name here, and any difference
    "learning_rate": ("step_size", ""),
    "lr": ("step_size", ""),
    "eta": ("step_size", ""),
    "noise_multiplier": ("noise_std", " It is a standard deviation, not a multiple of the clip"),
    "sigma": ("noise_std", ""),
    "max_grad_norm": ("clip", ""),
    "l2_norm_clip": ("clip", ""),
    "clip_norm": ("clip", ""),
    "batch_size": ("batch", ""),
    "eps": ("epsilon", ""),
    "delta": ("width", ""),  # of the Huber loss
    **dict.fromkeys(
        ("balls_in_bins", "b_min_sep"),
        ("cyclic_poisson", " Sampling by balls in bins or by b-min-sep has no guarantee here"),
    ),
    **dict.fromkeys(("client", "user"), ("machine", " The unit machine protects all records of one client")),
    **dict.fromkeys(("example", "sample"), ("record", "")),
    "sgd": ("noisy_sgd", " Or NoisyMinibatchSGD or LocalSGD. epsilon = inf is without noise"),
    "mu": ("epsilon", " This method takes an ε. A sweep of mu is converted to it"),
    "table": ("dataset", ""),
    "bernoulli": ("binomial", ""),
    **dict.fromkeys(("noniid", "non_iid", "non-iid"), ("dirichlet", " by_label and shards are not iid either")),
    "fedavg": ("fedavg", ""),
    "fedprox": ("fedavg", " FedProx is FedAvg with prox"),
    "dp_fedavg": ("fedavg", " DP-FedAvg is FedAvg with unit = 'machine'"),
    "dp_scaffold": ("scaffold", " DP-SCAFFOLD is SCAFFOLD with unit = 'record'"),
    **dict.fromkeys(
        ("dp_ftrl", "dpftrl", "ftrl"),
        ("fedavg", " DP-FTRL is FedAvg with unit = 'machine' and noise_schedule = 'tree'"),
    ),
    "dp_sgd": ("noisy_minibatch_sgd", " It is also known as DP-SGD"),
    "dpsgd": ("noisy_minibatch_sgd", " It is also known as DP-SGD"),
}
WHOLE_CLIENTS = (  # for methods without the setting `unit`
    "The methods that can protect whole clients are FedAvg ('fedavg'), Scaffold ('scaffold'), and algorithms with the "
    "privacy object LocalPrivacy ('local') or IntegerSums ('integers')"
)
RENAMED: dict[str, tuple[str, ...]] = {  # former names, and their possible replacements
    "ByShare": ("BySize",),
    "by_share": ("by_size",),
    "choose": ("tuning",),
    "every": ("eval_every",),
    "law": ("scheme",),
    "least": ("min_machines",),
    "most": ("max_uses", "max_machines"),
    "profile": ("relative_privacy",),
    "record": ("evaluation", "metrics"),
    "refuse": ("error",),
    "table": ("partition_table",),
    "test_share": ("test_fraction",),
}


def unknown(name: str, value: Any, known: Sequence[str], listed: int) -> str:
    """Return the message about an unknown value: with its present name, the nearest name, or up to `listed` choices.

    >>> unknown("key", "most", ["weights", "max_uses"], 10)
    "unknown key 'most': it is now 'max_uses'"
    >>> unknown("trust", "sever", ["server", "none"], 10)
    "unknown trust 'sever', did you mean 'server'? (known: server, none)"
    """
    text = f"unknown {name} {value!r}"
    for new in RENAMED.get(str(value), ()):
        if new in known:
            return f"{text}: it is now {new!r}"
    word, difference = OTHER_WORDS.get(str(value).lower(), ("", ""))
    if word in known:
        return f"{text}, did you mean {word!r}?{difference}"
    if value == "unit" and "epsilon" in known:
        return f"{text}. {WHOLE_CLIENTS}"
    near = difflib.get_close_matches(str(value), known, n=NEAREST)
    hint = f", did you mean '{near[0]}'?" if near else ""
    if len(known) <= listed:
        return f"{text}{hint} (known: {', '.join(known)})"
    near = near or difflib.get_close_matches(str(value), known, n=NEAREST, cutoff=0.0)
    others = f" (nearest: {', '.join(near)})" if len(near) > 1 else ""
    return f"{text}{hint}{others}"


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest, apart from case and underscores, or "" if none is near.

    >>> nearest_name("DPSGD", ["NoisySGD", "NoisyMinibatchSGD"]), nearest_name("Fedavg", ["FedAvg"])
    ('NoisyMinibatchSGD', 'FedAvg')
    """
    plain = {one.replace("_", "").lower(): one for one in known}
    word = OTHER_WORDS.get(name.lower(), (name, ""))[0].replace("_", "").lower()
    near = [word] if word in plain else difflib.get_close_matches(word, plain, n=1, cutoff=0.7)
    return plain[near[0]] if near else ""
