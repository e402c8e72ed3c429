import io
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from cases import sparing
from rich.console import Console
from scipy.stats import t

import fedprivjax as fpj
from fedprivjax import PrivacyGuarantee, experiment
from fedprivjax.experiment import Expected, verdict
from fedprivjax.experiment import jobs as listed
from fedprivjax.layout.text_table import html_table, plain
from fedprivjax.privacy import gdp
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import MACHINE, RECORD, Terms
from fedprivjax.report import guarantees, plots, remarks, tables, verdicts
from fedprivjax.report.remarks import sweep_notes
from fedprivjax.report.summary import Summary, summary
from fedprivjax.sweeps.results import with_alone
from fedprivjax.sweeps.selection import NO_EFFECT

MU, PER_ROUND, SEEDS, DELTA = [1.0, 64.0], [2, 3], 3, 1e-3
BOTH = ADD_OR_REMOVE, REPLACE_ONE


def make(**more):
    return experiment.parse(
        {
            "title": "small",
            "notes": "a note of its own",
            "problem": {"dataset": "logistic", "options": {"examples": 60, "features": 3}, "radius": 5.0},
            "participation": {"machines": 6},
            "protocol": [{"name": "dp_mu2", "label": "ours"}, {"name": "dp_mu2", "label": "free", "mu": float("inf")}],
            "sweep": {"mu": MU, "per_round": PER_ROUND, "seeds": SEEDS},
            "evaluation": {"delta": DELTA},
            **more,
        }
    )


def dataset(values, dims, **attrs):
    shape = values.shape
    sizes = {"per_round": PER_ROUND, "mu": MU, "seed": np.arange(SEEDS), "round": [5, 10]}
    variables = {name: ([*dims, "seed", "round"], values * scale) for name, scale in METRICS.items()}
    variables["diverged"] = ([*dims, "seed"], np.zeros(shape[:-1], bool))
    mu = np.inf if "mu" not in dims else np.broadcast_to(np.array(MU)[:, None], shape[:-1])
    variables["realised_mu"] = ([*dims, "seed"], np.broadcast_to(mu, shape[:-1]))
    variables["realised_epsilon"] = ([*dims, "seed"], gdp.epsilon(np.broadcast_to(mu, shape[:-1]), DELTA))
    variables["target_epsilon"] = (dims, variables["realised_epsilon"][1][..., 0])
    terms = Terms("none", "a theorem", unit=RECORD)
    worst = variables["realised_mu"][1][..., 0]
    texts = [PrivacyGuarantee(DELTA, terms, mus=Grouped.of([one])).to_json() for one in worst.ravel()]
    variables["guarantee"] = (dims, np.array(texts, object).reshape(worst.shape))
    attrs = {"delta": DELTA, "non_private_metrics": "", **attrs}
    return xr.Dataset(variables, {name: sizes[name] for name in [*dims, "seed", "round"]}, attrs)


METRICS = {"test_accuracy": 1.0, "test_loss": 2.0}


@pytest.fixture
def best():
    rng = np.random.default_rng(5)
    return {
        "ours": dataset(rng.uniform(size=(2, 2, SEEDS, 2)), ["per_round", "mu"]),
        "free": dataset(rng.uniform(size=(2, SEEDS, 2)), ["per_round"]),
    }


def columns(table):
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def text(renderable):
    console = Console(width=250, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def says(cell, runs, scale=1.0):
    """Return True if a cell is the mean and half-width of the interval of runs, to its digits."""
    half = t.ppf(0.975, SEEDS - 1) * np.std(runs, ddof=1) / np.sqrt(SEEDS)
    shown = cell.split(" ± ")
    exact = [
        f"{float(x) * scale:.{len(part.partition('.')[2])}f}"
        for x, part in zip((runs.mean(), half), shown, strict=True)
    ]
    return shown == exact and all("." in part for part in shown)


@pytest.mark.parametrize(("metric", "scale"), [("test_accuracy", 100), ("test_loss", 1)])
def test_a_results_table_has_the_datasets_values(best, metric, scale):
    swept = make()
    found = columns(tables.results_table(summary(swept, best), metric))
    cells = [(m, mu) for mu in MU for m in PER_ROUND]  # the file's order: the last axis changes fastest
    ours, free = (best[label][metric].isel(round=-1) for label in ("ours", "free"))
    for (m, mu), cell in zip(cells, found["ours"], strict=True):
        assert says(cell, ours.sel(per_round=m, mu=mu), scale)
    for m, cell in zip(PER_ROUND, found["free"][:2], strict=True):
        assert says(cell, free.sel(per_round=m), scale)
    assert found["mu"] == ["1", "1", "64", "64"]
    assert found["per_round"] == ["2", "3", "2", "3"]


def test_rounds_to_a_value_are_means_or_bounds_with_the_number_of_runs_that_reach_it(best):
    swept = make(evaluation={"delta": DELTA, "rounds_to": {"test_accuracy": 0.9}})
    reached, half_way = np.array([[0.95, 0.5], [0.5, 0.9], [0.9, 0.9]]), np.array([[0.95, 0.5], [0.5, 0.5], [0.5, 0.9]])
    ours = np.zeros((2, 2, SEEDS, 2))
    ours[0, 0], ours[0, 1] = reached, half_way
    best = {"ours": dataset(ours, ["per_round", "mu"]), "free": dataset(np.stack([half_way] * 2), ["per_round"])}
    best["ours"]["diverged"].values[0, 1, 2] = True
    sheet = tables.rounds_table(summary(swept, best), "test_accuracy", 0.9)
    assert sheet.title.startswith("rounds to test accuracy ≥ 90.0%, first evaluated round, mean ± 95% interval over 3")
    half = t.ppf(0.975, 2) * np.std([5, 10, 5], ddof=1) / np.sqrt(3)
    assert columns(sheet)["ours"] == [f"6.7 ± {half:.1f}", "> 10.0 (0 of 3)", "> 8.3 (1 of 3)", "> 10.0 (0 of 3)"]
    assert columns(sheet)["free"][0] == "> 8.3 (2 of 3)"
    assert sheet.title in [one.title for one in tables.results_tables(summary(swept, best))]
    assert any("k of n runs reach it" in line for line in remarks.footnotes(summary(swept, best)))


def with_constant(best, value):
    """Return the datasets with this value of the constant predictor's accuracy."""
    copies = {label: data.copy(deep=True) for label, data in best.items()}
    for data in copies.values():
        data["test_accuracy"].attrs["constant_predictor"] = value
    return copies


def test_cells_worse_than_the_constant_predictor_are_marked(best):
    told, swept = with_constant(best, 0.5), make()
    found = columns(tables.results_table(summary(swept, told), "test_accuracy"))
    assert found["constant predictor"] == ["50.0", "″", "″", "″"]
    cells = [cell for label in ("ours", "free") for cell in found[label] if cell != "″"]
    assert {cell.endswith(" †") for cell in cells} == {True, False}
    assert all((float(cell.split()[0]) < 50) == cell.endswith(" †") for cell in cells)
    notes = remarks.footnotes(summary(swept, told))
    assert "† marks a mean that is worse than the constant predictor's" in notes
    assert not any(line.startswith("†") for line in remarks.footnotes(summary(swept, with_constant(best, 0.0))))
    assert "constant predictor" not in columns(tables.results_table(summary(swept, told), "test_loss"))
    plain = make(evaluation={"delta": DELTA, "baselines": []})
    assert columns(tables.results_table(summary(plain, told), "test_accuracy")) == columns(
        tables.results_table(summary(plain, best), "test_accuracy")
    )


def test_each_machine_alone_is_a_separate_column(best):
    machines = np.array([0.2, 0.3, 0.4])
    told = {label: with_alone(data, {"test_accuracy": machines}, 3) for label, data in best.items()}
    cell = f"30.0 ± {t.ppf(0.975, 2) * 10 / np.sqrt(3):.1f}"
    found = columns(tables.results_table(summary(make(), told), "test_accuracy"))
    assert found["each machine alone"] == [cell, "″", "″", "″"]
    assert "each machine alone" not in columns(tables.results_table(summary(make(), told), "test_loss"))
    told["free"] = with_alone(best["free"], {"test_accuracy": machines + 0.5}, 3)
    found = columns(tables.results_table(summary(make(), told), "test_accuracy"))
    assert [found[f"each machine alone ({label})"][0][:4] for label in ("ours", "free")] == ["30.0", "80.0"]
    best["ours"]["alone_test_accuracy"] = ("per_round", [-1.0, 2.0])
    best["ours"]["alone_test_accuracy_interval"] = ("per_round", [np.nan, np.nan])
    found = columns(tables.results_table(summary(make(), best), "test_accuracy"))
    assert found["each machine alone"] == ["-100.0", "200.0", "-100.0", "200.0"]


def test_a_private_mean_above_a_non_private_one_has_a_remark(best):
    best["free"]["test_accuracy"] = 0.0 * best["free"]["test_accuracy"] + 0.01
    best["ours"]["test_accuracy"] = 0.0 * best["ours"]["test_accuracy"] + xr.DataArray([0.0, 0.5], dims="mu")
    (line,) = (line for line in remarks.footnotes(summary(make(), best)) if "is better than" in line)
    assert line.startswith("ours is better than free, which has no noise, in 2 of 4 cells of test accuracy: tune")


def test_a_private_mean_is_compared_with_its_own_baseline(best):
    def named(label, level, protocol):
        return (
            best[label].assign(test_accuracy=0.0 * best[label]["test_accuracy"] + level).assign_attrs(protocol=protocol)
        )

    results = {
        "a": named("ours", 0.5, "A"),
        "b": named("ours", 0.6, "B"),
        "shares a's": named("ours", 0.7, "A"),
        "a, non-private": named("free", 0.1, "A"),
        "b, non-private": named("free", 0.2, "B"),
    }
    found = [
        line.partition(", which has")[0] for line in remarks.footnotes(summary(make(), results)) if "better" in line
    ]
    assert found == [
        "a is better than a, non-private",
        "b is better than b, non-private",
        "shares a's is better than a, non-private",
    ]


def test_epsilon_is_next_to_mu_and_large_ones_are_marked(best):
    found = columns(tables.results_table(summary(make(), best), "test_loss"))
    epsilon = next(cells for name, cells in found.items() if "ε" in name)
    small, large = (up(float(gdp.epsilon(mu, DELTA)), 3) for mu in MU)
    assert epsilon == [small, small, f"{large} !", f"{large} !"]


def test_a_results_table_of_another_iterate(best):
    last = best["ours"].copy(deep=True)
    last["test_loss"] = last["test_loss"] + 1.0
    both = xr.concat([best["ours"], last], xr.Variable("iterate", ["output", "last"]), data_vars=["test_loss"])
    table = tables.results_table(
        summary(make(evaluation={"delta": DELTA, "iterate": "last"}), {"ours": both}), "test_loss"
    )
    assert table.title.startswith("test loss of the iterate 'last', mean")
    assert columns(table)["ours"] == columns(tables.results_table(summary(make(), {"ours": last}), "test_loss"))["ours"]
    output = columns(tables.results_table(summary(make(), {"ours": both}), "test_loss"))["ours"]
    assert output == columns(tables.results_table(summary(make(), best), "test_loss"))["ours"]


def test_the_realised_epsilon_is_the_worst_runs_next_to_its_target(best):
    realised = best["ours"]["realised_epsilon"]
    best["ours"]["realised_epsilon"] = realised * xr.DataArray([0.5, 0.9, 0.25], dims="seed")
    table = tables.realised_table(summary(make(), best))
    assert table.title == "realised ε at δ = 0.001, the worst of 3 seeds"
    found = columns(table)
    small, large = (float(gdp.epsilon(mu, DELTA)) for mu in MU)
    assert found["mu"] == ["1", "1", "64", "64"]
    assert found["target ε"] == [up(small, 3)] * 2 + [f"{up(large, 3)} !"] * 2
    assert found["ours"] == [up(0.9 * small, 3)] * 2 + [f"{up(0.9 * large, 3)} !"] * 2
    assert "free" not in found


OWN = [{"name": "dp_mu2", "label": "ours", "mu": 1.0}, {"name": "noisy_sgd", "label": "free", "mu": float("inf")}]
NOISE = [{"name": "dp_mu2", "label": "ours", "noise_std": 1.0}]


ONE = up(float(gdp.epsilon(1.0, DELTA)), 4)


@pytest.mark.parametrize(
    ("protocols", "sweep", "printed", "stated"),
    [
        (None, {"mu": MU}, False, "ε"),  # each row has its target, which is met
        (None, {"mu": MU[:1]}, False, f"ε = {ONE}"),
        (OWN, {}, False, f"ε = {ONE}"),
        (OWN[1:], {}, False, "ε"),  # nothing is private
        (NOISE, {}, True, "ε"),  # no target
    ],
)
def test_the_realised_epsilon_has_a_table_if_no_row_or_title_shows_it(best, protocols, sweep, printed, stated):
    settings = make(
        sweep={**sweep, "per_round": PER_ROUND, "seeds": SEEDS}, **({"protocol": protocols} if protocols else {})
    )
    one = {**best, "ours": best["ours"].isel(mu=[0])} if "mu" not in sweep or len(sweep["mu"]) == 1 else best
    one = {"free": best["free"]} if protocols == OWN[1:] else one
    if protocols == NOISE:
        one["ours"] = one["ours"].assign(target_epsilon=np.nan * one["ours"]["target_epsilon"])
    titles = [table.title for table in tables.results_tables(summary(settings, one))]
    assert [title.split(",")[0] for title in titles[:2]] == ["test accuracy %", "test loss"]
    assert all(title.endswith(f"; {stated} at δ = 0.001") for title in titles[:2])
    assert [title.split(" at")[0] for title in titles[2:]] == ["realised ε"] * printed


def test_different_fixed_targets_or_none_have_a_table_of_realised_epsilon(best):
    ours = [best["ours"].isel(mu=place, drop=True) for place in (0, 1)]
    given = ours[0].assign(target_epsilon=np.nan * ours[0]["target_epsilon"])
    for other in (ours[1], given, best["ours"]):
        titles = [table.title for table in tables.results_tables(summary(make(), {"ours": ours[0], "theirs": other}))]
        assert [title.startswith("realised ε") for title in titles] == [False, False, True]
        assert titles[0].endswith("; ε at δ = 0.001")


@pytest.mark.parametrize(
    ("off", "printed"), [(1.0, False), (0.995, False), (1.001, True), (np.inf, True), (0.98, True)]
)
def test_a_realised_epsilon_that_differs_from_its_target_has_a_table(best, off, printed):
    best["ours"]["realised_epsilon"] = off * best["ours"]["realised_epsilon"]
    titles = [table.title for table in tables.results_tables(summary(make(), best))]
    assert any(title.startswith("realised ε") for title in titles) == printed
    notes = remarks.footnotes(summary(make(), best))
    assert ("realised ε of the worst run: within 1% of its target" in notes) != printed


@pytest.mark.parametrize("off", [1.001, np.inf])
def test_a_target_that_a_realised_epsilon_exceeds_is_in_no_title(best, off):
    ours = best["ours"].isel(mu=0, drop=True)
    theirs = ours.assign(realised_epsilon=off * ours["realised_epsilon"])
    shown = tables.results_tables(summary(make(), {"ours": ours, "theirs": theirs}))
    assert shown[0].title.endswith("; ε at δ = 0.001")
    (realised,) = (sheet for sheet in shown if sheet.title.startswith("realised"))
    target = up(float(gdp.epsilon(1.0, DELTA)), 3)
    assert list(realised.frame.columns[-2:]) == [f"ours (target {target})", f"theirs (target {target})"]


def test_a_fixed_target_is_in_the_protocols_column_header(best):
    settings = make(protocol=OWN, sweep={"per_round": PER_ROUND, "seeds": SEEDS})
    found = columns(tables.realised_table(summary(settings, {**best, "ours": best["ours"].isel(mu=0, drop=True)})))
    target = up(float(gdp.epsilon(1.0, DELTA)), 3)
    assert found == {"per_round": ["2", "3"], f"ours (target {target})": [target] * 2}


def test_an_axis_of_one_value_needs_no_column(best):
    one = make(sweep={"mu": MU[:1], "per_round": PER_ROUND[:1], "seeds": SEEDS})
    single = {label: data.isel({k: [0] for k in ("mu", "per_round") if k in data.dims}) for label, data in best.items()}
    found = columns(tables.results_table(summary(one, single), "test_loss"))
    runs = best["ours"]["test_loss"].isel(mu=0, per_round=0, round=-1)
    assert len(found["ours"]) == 1
    assert says(found["ours"][0], runs)


def test_footnotes_name_a_clip_without_effect_and_a_best_cell_at_the_edge(best):
    means = np.array([[0.5, 0.6, 0.7], [0.4, 0.9, 0.1]])[:, :, None]  # [mu, clip, seed]
    data = xr.Dataset(
        {
            "test_accuracy": (("mu", "clip", "seed", "round"), np.broadcast_to(means, (2, 3, SEEDS))[..., None]),
            "noise_std": (("mu", "clip"), [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0]]),
            "step_size": ("clip", [4.0, 2.0, 1.0]),
        },
        {"mu": MU, "clip": [1.0, 2.0, 4.0], "seed": range(SEEDS), "round": [5]},
    )

    def notes(data):
        return sweep_notes({"ours": data}, Summary({"ours": data}).cells("test_accuracy"))

    tried = "the clip with the best test accuracy is the smallest or largest value tried"
    edge = f"ours: {tried} in 1 of 2 cells; a wider grid may contain a better one"
    assert notes(data) == [f"ours: {NO_EFFECT}"]
    fixed = data.assign(step_size=data["step_size"] * 0 + 1.0)
    assert notes(fixed) == [edge]
    assert notes(fixed.isel(mu=1)) == []
    assert notes(fixed.isel(mu=0)) == [f"ours: {tried}; a wider grid may contain a better one"]
    assert notes(fixed.isel(clip=[0, 1])) == []  # two values are no grid
    best["ours"] = best["ours"].rename(mu="clip").assign(noise_std=("clip", MU), step_size=("clip", 1 / np.array(MU)))
    assert f"ours: {NO_EFFECT}" in remarks.footnotes(summary(make(), best))


def test_footnotes_state_guarantees_selection_and_divergence(best):
    best["ours"]["diverged"][0, 0, 0] = True
    best["ours"] = best["ours"].assign_attrs(selected="clip by the best mean test_loss: not accounted for")
    said = "\n".join(remarks.footnotes(summary(make(), best)))
    for words in (
        "one record of one machine",
        "replace-one",
        "trust: none",
        "a theorem",
        "not accounted for",
        "1 of 12 runs diverged",
    ):
        assert words in said
    assert "free: non-private" in said
    assert "ε > 10" in said
    assert "not for deployment" in said
    assert "a note of its own" in said


def restated(data, **terms):
    """Return results with the same numbers and other terms of the guarantees."""
    stated = {"trust": "none", "theorem": "a theorem", **terms}
    texts = [
        replace(PrivacyGuarantee.from_json(text), terms=Terms(**stated)).to_json()
        for text in data["guarantee"].values.ravel()
    ]
    return data.assign(guarantee=(data["guarantee"].dims, np.array(texts, object).reshape(data["guarantee"].shape)))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"unit": RECORD}, False),
        pytest.param({"unit": RECORD, "theorem": "another"}, False, marks=pytest.mark.slow),
        ({"unit": RECORD, "relation": ADD_OR_REMOVE}, True),
        ({"unit": MACHINE}, True),
    ],
)
def test_titles_name_units_and_relations_that_differ(best, other, named):
    ours = restated(best["ours"], unit=RECORD)
    both = {"ours": ours, "theirs": restated(best["ours"], **other), "free": restated(best["free"], unit="nothing")}
    both["ours"]["realised_epsilon"] = 1.5 * ours["realised_epsilon"]
    shown = tables.results_tables(summary(make(evaluation={"delta": DELTA, "rounds_to": {"test_accuracy": 0.5}}), both))
    assert len(shown) == 4
    subjects = [f"ε for {one.unit} ({one.stated_relation})" for one in Summary(both).terms]
    for table in shown:
        assert ("DIFFERENT GUARANTEES" in table.title) == named
        assert all(subject in table.title for subject in subjects) == named
        assert "nothing" not in table.title
        assert table.title.split(";")[-1] in html_table(table)


def test_axes_of_epsilon_name_the_relations(best):
    both = {"ours": best["ours"], "theirs": restated(best["ours"], unit=MACHINE, relation=ADD_OR_REMOVE)}
    labels = [axis.get_xlabel() for axis in plots.metric_against_epsilon(Summary(both)).axes]
    assert [
        label.endswith(f", unit: machine and record, {ADD_OR_REMOVE} (zero-out), {REPLACE_ONE})") for label in labels
    ] == [
        True,
        True,
    ]


def test_footnotes_are_left_out_if_they_do_not_apply(best):
    small = {"ours": best["ours"].isel(mu=[0])}
    said = "\n".join(remarks.footnotes(summary(make(), small)))
    for words in ("diverged", "not accounted for", "non-private", "ε > 10"):
        assert words not in said


def test_metrics_on_private_data_are_named(best):
    best["ours"] = best["ours"].assign_attrs(non_private_metrics="train_loss")
    assert "non-private metric: train_loss" in "\n".join(remarks.footnotes(summary(make(), best)))


def test_metrics_on_private_data_are_named_whichever_protocol_recorded_them(best):
    names = iter(("train_loss", "train_loss, clipped_share", "message_norm"))
    marked = {label: data.assign_attrs(non_private_metrics=next(names, "")) for label, data in best.items()}
    expected = "non-private metrics: train_loss, clipped_share" + (", message_norm" if len(best) > 2 else "")
    assert expected in "\n".join(remarks.footnotes(summary(make(), marked)))


def test_the_fraction_of_data_used_is_stated_once_for_protocols_with_the_same(best):
    def said(of):
        marked = {label: data.assign_attrs(data_used=of[label]) for label, data in best.items() if label in of}
        return [line for line in remarks.footnotes(summary(make(), marked)) if "a run uses" in line]

    part, whole = "20 of 40 examples (50%)", "40 of 40 examples (100%)"
    assert said({"ours": part, "free": part}) == [f"a run uses {part}"]
    assert said({"ours": part, "free": whole}) == [f"ours: a run uses {part}", f"free: a run uses {whole}"]
    assert said({"ours": part, "free": ""}) == [f"ours: a run uses {part}"]
    assert not any("a run uses" in line for line in remarks.footnotes(summary(make(), best)))


EXPECTED = [
    {
        "protocol": "ours",
        "rule": "within",
        "tolerance": 1.0,
        "cells": [{"at": {"mu": 1, "per_round": 2}, "value": 0.5}],
    },
    {"protocol": "ours", "rule": "within", "cells": [{"at": {"mu": 1, "per_round": 3}, "value": 0.5}]},
    {"protocol": "published", "rule": "shown", "cells": [{"at": {"mu": 1, "per_round": 2}, "value": 0.25}]},
]


def test_verdict_tables_and_their_line(best):
    found = verdict.verdicts(make(expected=EXPECTED), best)
    columns_of = [columns(table) for table in verdicts.verdict_tables(found)]
    runs = best["ours"]["test_accuracy"].isel(mu=0, round=-1)
    for i, table in enumerate(columns_of[:2]):
        own = runs.isel(per_round=i)
        assert says(table["ours"][0], own, 100)
        assert table["sd"] == [f"{100 * np.std(own, ddof=1):.1f}"]
        assert table["difference"] == [f"{100 * (float(own.mean()) - 0.5):+.1f}"]
    assert [table["expected"] for table in columns_of] == [["50.0"], ["50.0"], ["25.0"]]
    assert [table["verdict"] for table in columns_of] == [["ok"], ["MISS"], ["–"]]
    line, holds = verdicts.verdict_line(found)
    assert line.startswith("1 of 2")
    assert not holds
    assert verdicts.verdict_line(found[:1])[1]


def test_a_guarantee_table_has_one_row_per_configuration():
    jobs = listed.jobs(make(sweep={"mu": MU, "per_round": PER_ROUND, "seeds": 1}))
    (table,) = map(columns, guarantees.guarantee_tables(jobs, DELTA))
    assert table["protocol"] == ["ours"] * 4 + ["free"] * 2
    worst = table["μ (worst machine)"]
    # the first seed's schedule spends the target at most, and the μ of the rows are in the proportion of the targets
    assert all(0 < float(cell) <= mu * 1.001 for cell, mu in zip(worst[:4], [*MU, *MU], strict=True))
    assert float(worst[1]) / float(worst[0]) == pytest.approx(64, rel=1e-3)
    assert worst[4:] == ["non-private"] * 2
    exact = next(cells for name, cells in table.items() if "exact" in name)
    for cell, mu in zip(exact[:4], worst, strict=False):
        assert float(cell.removesuffix(" !")) == pytest.approx(float(gdp.epsilon(float(mu), DELTA)), rel=6e-3)


def test_guarantee_tables_that_are_split_repeat_protocol_and_setting():
    jobs = listed.jobs(make(sweep={"mu": MU, "per_round": PER_ROUND, "seeds": 1}))
    tables = [*guarantees.guarantee_tables(jobs, DELTA), guarantees.cross_check_table(jobs, DELTA)]
    for table in tables:
        lines = plain(table, width=40).splitlines()
        shared = next((line for line in lines if line.startswith("all rows:")), "")
        heads = [line.split("┃")[1:-1] for line in lines if line.startswith("┃") and "setting" in line]
        assert len(heads) > 1
        keys = ["setting"] if "protocol" in shared else ["protocol", "setting"]
        assert all([cell.strip() for cell in head[: len(keys)]] == keys for head in heads)


@pytest.mark.parametrize("rule", ["rule", "plan"])
def test_a_realised_epsilon_below_its_target_has_a_line_with_the_remedy(rule):
    rows = np.arange(1420).reshape(20, 71)
    problem = fpj.from_dataset(fpj.datasets.load("digits"), constraint=fpj.Ball(8.0), partition_table=rows)
    method = fpj.NoisyMinibatchSGD(epsilon=8.0, clip=1.6, sampler="full", calibrate_to=rule)
    grid = fpj.sweep(method, problem, fpj.Balanced(20, 10), over={"epsilon": [4.0, 8.0]}, rounds=4, seeds=2)
    text = " ".join(str(fpj.table(grid)).split())
    for words in ("realised ε is below its target", 'calibrate_to = "plan" in [[protocol]]'):
        assert (words in text) == (rule == "rule")


GRIDS = {
    "clip": {"name": "dp_mu2", "noise_std": 10.0, "grid": {"clip": [1, 10]}},
    "clip of noisy SGD": {"name": "noisy_sgd", "noise_std": 10.0, "step_size": 0.1, "grid": {"clip": [1, 10]}},
    "radius": {"name": "dp_mu2", "mu": 4.0, "grid": {"radius": [0.5, 5]}},
    "noise": {"name": "dp_mu2", "clip": 1.0, "grid": {"noise_std": [1, 10]}},
    "none first": {"name": "dp_mu2", "clip": 1.0, "grid": {"mu": [float("inf"), 2]}},
}


@pytest.mark.parametrize("name", GRIDS)
def test_the_guarantees_printed_are_those_of_a_run(name):
    (job,) = listed.jobs(make(protocol=[GRIDS[name]], sweep={"per_round": [3], "seeds": 1}))
    (table,) = map(columns, guarantees.guarantee_tables([job], DELTA))
    realised = np.unique(job.prepare().privacy()[0]["realised_mu"])
    printed = [np.inf if cell == "non-private" else float(cell) for cell in table["μ (worst machine)"]]
    np.testing.assert_allclose(np.unique(printed), realised, rtol=1e-3)


RECORD_GRIDS = {"clip": [0.1, 1], "noise_std": [1, 5], "epsilon": [float("inf"), 2]}


@pytest.mark.parametrize("name", RECORD_GRIDS)
@pytest.mark.parametrize("method", sparing(["noisy_minibatch_sgd", "local_sgd"], ["noisy_minibatch_sgd"]))
def test_the_guarantees_printed_for_records_are_those_of_a_run(method, name):
    fixed = {"noise_std": 1.0} if name == "clip" else {}
    entry = {"name": method, "batch": 2, "step_size": 0.1, **fixed, "grid": {name: RECORD_GRIDS[name]}}
    problem = {**make().problem.model_dump(exclude_none=True), "partition": {"kind": "iid"}}
    settings = make(problem=problem, protocol=[entry], sweep={"per_round": [3], "rounds": [5], "seeds": 1})
    (job,) = listed.jobs(settings)
    (table,) = map(columns, guarantees.guarantee_tables([job], DELTA))
    realised = np.unique(job.prepare().privacy()[0]["realised_epsilon"])
    printed = [
        np.inf if least == "non-private" else float(most.removesuffix(" !"))
        for least, most in zip(table["ε (at least)"], table["ε (at most)"], strict=True)
    ]
    np.testing.assert_allclose(np.unique(printed), realised, rtol=1e-2)  # rounded up to three digits


def test_noise_of_unequal_machines_is_the_largest_or_the_smallest():
    privacy = {"relative_privacy": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0], "epsilon": 2.0, "clip": 1.0, "step_size": 0.1}
    protocol = [
        {"name": "dp_mu2", "label": "smallest", **privacy},
        {"name": "dp_mu2", "label": "equal", **privacy, "relative_privacy": [1.0] * 6},
        {"name": "noisy_minibatch_sgd", "label": "largest", "batch": 2, **privacy},
    ]
    problem = {**make().problem.model_dump(exclude_none=True), "partition": {"kind": "iid"}}
    jobs = listed.jobs(make(problem=problem, protocol=protocol, sweep={"per_round": [3], "rounds": [5], "seeds": 1}))
    tables = map(columns, guarantees.guarantee_tables(jobs, DELTA))
    noise = {label: cell for table in tables for label, cell in zip(table["protocol"], table["noise_std"], strict=True)}
    assert {label: cell.partition(" ")[2] for label, cell in noise.items()} == {
        "smallest": "(smallest)",
        "equal": "",
        "largest": "(largest)",
    }


@pytest.mark.slow
def test_settings_that_resample_the_schedule_share_a_row():
    entry = {"name": "noisy_minibatch_sgd", "batch": 2, "clip": 1.0, "grid": {"step_size": [0.1, 0.2, 0.4]}}
    problem = {**make().problem.model_dump(exclude_none=True), "partition": {"kind": "iid"}}
    sweep = {"epsilon": [1.0, 4.0], "per_round": [3], "rounds": [5], "seeds": 1, "resample": ["step_size"]}
    (job,) = listed.jobs(make(problem=problem, protocol=[entry], sweep=sweep))
    (table,) = map(columns, guarantees.guarantee_tables([job], DELTA))
    assert len(table["ε (at most)"]) == 2
    start = job.prepare()
    first = [start.configurations.events[place][0].epsilon(DELTA) for place in (0, 3)]
    printed = [float(cell.removesuffix(" !")) for cell in table["ε (at most)"]]
    np.testing.assert_allclose(printed, first, rtol=6e-3)


def judged(share, holds, of, *, difference=0.0, sd=1.0, limit=None):
    expected = Expected(protocol="ours", rule="within_se", share=share, limit=limit)
    return [verdict.Verdict(expected, {}, 1.0 + difference, 0.1, sd, 5, 1.0, place < holds) for place in range(of)]


@pytest.mark.parametrize(
    ("entries", "good"),
    [
        ([(0.5, 100, 100), (0.95, 5, 10)], False),
        ([(0.5, 25, 50), (0.95, 20, 20)], True),
        ([(0.95, 18, 20), (0.95, 20, 20)], True),  # one share, one pool of cells
        ([(1.0, 9, 10), (0.5, 10, 10)], False),
    ],
)
def test_every_share_is_required_of_its_cells(entries, good):
    line, holds = verdicts.verdict_line([v for entry in entries for v in judged(*entry)])
    assert holds == good
    assert line.startswith(f"{sum(h for _, h, _ in entries)} of {sum(n for _, _, n in entries)} cells")


def test_no_cell_may_exceed_the_limit():
    assert verdicts.verdict_line(judged(0.5, 9, 10, difference=4.0, limit=5.0))[1]
    assert not verdicts.verdict_line(judged(0.5, 9, 10, difference=6.0, limit=5.0))[1]
    assert verdicts.verdict_line(judged(0.5, 10, 10, sd=0.0, limit=5.0))[1]


def test_a_slope_is_shown_with_its_interval_and_not_in_the_metrics_unit(best):
    entry = {"protocol": "ours", "metric": "test_accuracy", "rule": "slope", "axis": "mu", "tolerance": 0.2}
    more = {"sweep": {"mu": [1.0, 8.0, 64.0], "per_round": PER_ROUND}}
    expected = Expected(**entry, cells=[])
    found = [verdict.Verdict(expected, {"per_round": 2.0}, -0.6666, 0.1234, 0.05, 5, -0.5, True)]
    (table,) = verdicts.verdict_tables(found)
    assert "exponent of test accuracy % in mu (least squares of logarithms ± 95% interval)" in str(table.title)
    assert "at most 0.2 above it" in str(table.title)
    shown = columns(table)
    assert shown["ours"] == ["-0.667 ± 0.123"]
    assert (shown["standard error"], shown["expected"], shown["difference"]) == (["0.050"], ["-0.500"], ["-0.167"])
    assert make(**more, expected=[{**entry, "cells": [{"at": {"per_round": 2}, "value": -0.5}]}])


@pytest.mark.slow
def test_a_guarantee_table_shows_both_relations_where_both_exist():
    client = {"name": "fedavg", "unit": "machine", "update_clip": 0.5, "local_epochs": 1, "step_size": 0.1, "batch": 2}
    record = {"name": "noisy_minibatch_sgd", "epsilon": 2.0, "batch": 2, "step_size": 0.1, "clip": 1.0}
    protocol = [
        {**client, "label": "added", "epsilon": 2.0, "relation": "add-or-remove-one"},
        {**client, "label": "replaced", "epsilon": 2.0},
        {**record, "label": "Poisson", "sampler": "poisson", "rate": 0.2, "relation": "add-or-remove-one"},
        {**record, "label": "subset"},
    ]
    problem = {**make().problem.model_dump(exclude_none=True), "partition": {"kind": "iid"}}
    jobs = listed.jobs(make(problem=problem, protocol=protocol, sweep={"per_round": [3], "rounds": [5], "seeds": 1}))
    machines, records = guarantees.guarantee_tables(jobs, DELTA)
    shown = columns(machines)
    added, replaced = ([float(cell.removesuffix(" !")) for cell in shown[f"ε, {one}"]] for one in BOTH)
    mu = float(gdp.mu(2.0, DELTA))
    np.testing.assert_allclose(added, [2.0, gdp.epsilon(mu / 2, DELTA)], rtol=6e-3)
    np.testing.assert_allclose(replaced, [gdp.epsilon(2 * mu, DELTA), 2.0], rtol=6e-3)
    poisson, subset = zip(*(columns(records)[f"ε, {one}"] for one in BOTH), strict=True)
    assert float(poisson[0]) == pytest.approx(2.0, rel=6e-3)
    assert float(poisson[1]) > 2.5
    assert (subset[0], float(subset[1])) == ("–", pytest.approx(2.0, rel=6e-3))
    assert "add-or-remove-one (zero-out)), ε for all records of one machine (replace-one)" in machines.title
    assert "ε for one record of one machine (add-or-remove-one), ε for one" in records.title
    (alone,) = guarantees.guarantee_tables(jobs[-1:], DELTA)
    assert "DIFFERENT" not in alone.title
    assert not any(f"ε, {one}" in columns(alone) for one in BOTH)


def test_the_title_of_a_table_states_all_numbers_of_seeds(best):
    equal, other = summary(make(), best), summary(make(), {**best, "free": best["free"].isel(seed=[0])})
    assert equal.over == f"{SEEDS} seeds"
    assert f", mean ± 95% interval over {SEEDS} seeds; " in tables.results_table(equal, "test_loss").title
    assert other.over == f"{SEEDS} seeds or 1 seed"
    assert f", mean over {other.over}; " in tables.results_table(other, "test_loss").title
    assert "1 seed: free" in remarks.footnotes(other)
