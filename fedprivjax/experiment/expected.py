"""`[[expected]]` of an experiment file: expected numbers, their origins, and rules of comparison."""

from typing import Literal

from fedprivjax.experiment.section import Settings

RULES = {  # rules of comparison as text
    "within": "within {amount}",
    "within_sd": "within {tolerance:g} sd",
    "within_se": "within {tolerance:g} standard errors",
    "at_least": "at least it − {amount}",
    "at_most": "at most it + {amount}",
    "above": "above {other}",
    "paired_above": "95% interval above it",
    "slope": "at most {tolerance:g} above it",
    "increases": "95% interval above 0",
    "decreases": "95% interval below 0",
    "shown": "not judged",
}
ORDER = {"increases": 1, "decreases": -1}  # rules on the order of means along an axis
ALONG_AXIS = ("slope", *ORDER)


class Cell(Settings):
    """One expected number of an experiment, such as an accuracy in a paper's table.

    It is one entry of `cells` in a section `[[expected]]` of an experiment file. The key `rule` of the section says how
    a result is compared with the number.

    Attributes:
        at: values of the swept settings, by name, such as epsilon = 2.0. The result at these values is compared
            with the number.
        value: expected number, or None. The rules "above", "paired_above", "increases" and "decreases" need no number.
            The rule "within_se" requires a number, its `sd`, and `runs` of at least 2. With any other rule, a result
            without a number is shown but not compared.
        sd: standard deviation of the number over the published runs, or None if unknown.
        runs: number of published runs, or None if unknown.
    """

    at: dict[str, float] = {}
    value: float | None = None
    sd: float | None = None
    runs: int | None = None


class Expected(Settings):
    """`[[expected]]`: published or expected numbers of one protocol and metric, and the rule of comparison.

    Rules: "within" `tolerance`; "within_sd", within `tolerance` standard deviations of a run; "within_se", within
    `tolerance` standard errors of the difference of two means; "at_least" the value minus `tolerance`; "at_most" the
    value plus `tolerance`; "above" the mean of the protocol `other` at the same iterate, or at its output if it has no
    such iterate (of this protocol: always its output); "paired_above", the mean difference to `other`, seed by seed,
    has its 95% interval above the value (default: 0); "slope", an exponent in the swept `axis` of at most the value
    plus `tolerance`; "increases" and "decreases", every change from one value of the swept `axis` to the next, paired
    by seed, has its 95% interval on that side of 0; "shown" is not judged.

    Origins: "table", a table of a paper; "text", a claim in a paper's text; "code", runs of the authors' released code;
    "run", an earlier run or program of this project; "derivation", a theorem or an exact computation.

    Attributes:
        protocol: label of the protocol.
        metric: metric that is compared.
        iterate: iterate of the protocol, such as "last".
        rounds: value of a run: its "last" evaluation, or the "mean" over all evaluations.
        rounds_to: value of the metric, or None. With it, the number compared is the first evaluated round at which a
            run reaches this value, or infinity if it never does.
        source: place of the number, such as "Table 1".
        origin: kind of the source. Verdicts count the cells of each kind apart. Default: not stated, or for "above",
            "paired_above", "increases" and "decreases" a comparison within the run.
        rule: rule of comparison.
        tolerance: tolerance of the rule, in its unit.
        share: fraction of the cells of rule "within_se" that must be within tolerance.
        limit: largest deviation of any cell of rule "within_se", in standard errors.
        other: label of the protocol of rules "above" and "paired_above".
        axis: swept setting of rules "slope", "increases" and "decreases".
        cells: the numbers.
    """

    protocol: str
    metric: str = "test_accuracy"
    iterate: str = "output"
    rounds: Literal["last", "mean"] = "last"
    rounds_to: float | None = None
    source: str = ""
    origin: Literal["", "table", "text", "code", "run", "derivation"] = ""
    rule: Literal[tuple(RULES)] = "within"  # pyright: ignore[reportInvalidTypeForm]
    tolerance: float = 0.0
    share: float = 1.0
    limit: float | None = None
    other: str | None = None
    axis: str | None = None
    cells: list[Cell] = []
