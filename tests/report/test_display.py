"""`table` and `plot`: what the command line shows, of whatever has results."""

import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest
import xarray as xr

import fedprivjax as fpj
from fedprivjax import Refusal, experiment
from fedprivjax.experiment import folder
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.results import load
from fedprivjax.experiment.tuning import selected
from fedprivjax.layout.colours import new_figure
from fedprivjax.layout.drawing import add_legend, panelled, stack_panels
from fedprivjax.layout.wording import epsilon_text
from fedprivjax.privacy import gdp
from fedprivjax.report import plots
from fedprivjax.report.display import tables
from fedprivjax.report.page import RUN_FIGURES, RunFigures, as_drawn, guarantee_texts, page, write_page
from fedprivjax.report.summary import Summary, summary, summary_of

EVIL = "<script>alert('x') & [bold]"


def make(label):
    return experiment.parse(
        {
            "title": f"small {label}",
            "notes": f"noted {label}",
            "problem": {"dataset": "least_squares", "options": {"examples": 60, "features": 3}, "radius": 2.0},
            "participation": {"machines": 6, "per_round": 3, "rounds": 4},
            "protocol": [
                {"name": "dp_mu2", "label": label},
                {"name": "noisy_sgd", "label": "free", "mu": float("inf"), "grid": {"step_size": [0.1, 0.2]}},
            ],
            "sweep": {"mu": [1, 8], "seeds": 3},
            "evaluation": {"metrics": ["excess_risk", "distance", "train_loss"], "select": "excess_risk", "every": 2},
        }
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Results with labels that contain HTML and rich markup, which must be shown as text."""
    into, made = tmp_path_factory.mktemp("results"), make(EVIL)
    folder.claim(into, made)
    folder.save(runner.run(made), into, made.title, 1.0)
    return into


@pytest.fixture(scope="module")
def results(kept):
    return load(kept)


@pytest.mark.slow
def test_tables_are_those_of_the_command_line(kept, results, capsys):
    said = str(fpj.table(kept))
    assert said == str(fpj.table(str(kept))) == str(fpj.table(results))
    print(tables(summary(results.spec, selected(results.spec, dict(results)))))
    assert capsys.readouterr().out == said + "\n"
    for words in (EVIL, "excess risk, mean ± 95% interval over 3 seeds", "realised ε", "not for deployment", "noted"):
        assert words in said
    sheets = fpj.table(results, "excess_risk").sheets
    every = [sheet.title for sheet in fpj.table(results).sheets]
    assert [sheet.title for sheet in sheets] == [every[0], every[-1]]
    assert every[-1] == "settings chosen by the best mean excess_risk, not covered by the guarantee"


def test_a_sweeps_dataset_needs_no_file(results):
    data = results[EVIL]
    (sheet,) = fpj.table(data, "excess_risk").sheets
    assert sheet.frame.columns.tolist() == ["mu", "target ε", "DPMu2"]
    mean, half = fpj.mean_interval(fpj.final(data, "excess_risk"))
    cells = [f"{m:.6f} ± {h:.6f}" for m, h in zip(mean.values, half.values, strict=True)]
    assert sheet.columns[2].cells == cells
    assert sheet.columns[1].cells[0] == f"{float(gdp.epsilon(1.0, 1e-5)):.3g}"
    both = fpj.table({"one": data, "two": data}, "excess_risk").sheets[0]
    assert both.frame["one"].tolist() == both.frame["two"].tolist() == cells
    titles = [sheet.title.split(" at")[0] for sheet in fpj.table(data).sheets]
    assert not any(title.startswith("realised ε") for title in titles)  # it is the target of each row
    assert titles[-1].startswith("what a run costs")


def test_plots_are_those_of_the_command_line(results):
    usual = plots.all_plots(Summary(results.best))
    assert list(usual) == ["excess_risk_against_epsilon", "excess_risk_over_rounds"]
    for figure, asked in ((usual["excess_risk_against_epsilon"], {}), (usual["excess_risk_over_rounds"], ROUNDS)):
        again = fpj.plot(results, **asked)
        for mine, theirs in zip(again.axes[0].lines, figure.axes[0].lines, strict=True):
            np.testing.assert_array_equal(np.asarray(mine.get_ydata(), float), np.asarray(theirs.get_ydata(), float))
    assert fpj.plot(results, "distance", "epsilon").axes[0].get_ylabel().startswith("distance\n")
    assert fpj.plot(results[EVIL], "distance", "round").axes[0].get_xlabel() == "round"


def test_results_without_the_usual_metrics_are_drawn(results):
    data = results[EVIL]
    few = data.drop_vars([name for name in data if "round" in data[name].dims and name != "distance"])
    assert fpj.plot(few).axes[0].get_ylabel().startswith("distance\n")


def test_one_cost_is_an_axis(results):
    data = results[EVIL].assign(hours=0.5 * results[EVIL]["sent_bytes"])
    for against, cost, words in (
        ("hours", "hours", "simulated hours"),
        ("bytes", "sent_bytes", "sent by a"),
        ("gradients", "gradients_per_record", "a record"),
    ):
        (axis,) = fpj.plot(data, "excess_risk", against).axes
        assert words in axis.get_xlabel()
        assert axis.lines[0].get_xdata()[-1] == pytest.approx(float(data[cost].sel(mu=8).mean()))
    endless = data.assign(gradients_per_record=np.nan * data["gradients_per_record"])
    with pytest.raises(Refusal, match="results must have gradients a record to be drawn against, got none"):
        fpj.plot(endless, "excess_risk", "gradients")


ROUNDS = {"against": "round"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"metric": "distant"}, r"unknown metric 'distant', did you mean 'distance'\?"),
        ({"metric": "epsilonn"}, r"unknown metric 'epsilonn', did you mean 'epsilon'\?"),
        ({"metric": "epsilon"}, "metric must be a metric's name, got the axis 'epsilon'. Write against='epsilon'"),
        ({"against": "machines"}, r"unknown axis of a plot 'machines' \(known: epsilon, round, costs, bytes, "),
        ({"metric": "excess_risk", "iterate": "lost"}, None),
    ],
)
def test_metrics_that_were_not_recorded_are_rejected(results, asked, message):
    if message is None:  # protocols without that iterate show their output
        assert fpj.plot(results, **asked).axes
        return
    with pytest.raises(Refusal, match=message):
        fpj.plot(results, **asked)


def test_values_without_results_are_rejected(results, tmp_path):
    with pytest.raises(
        Refusal, match=r"^results must be a folder, the result of load, or datasets of sweeps, got int$"
    ):
        fpj.table(3)
    with pytest.raises(Refusal, match=r"^dataset of 'one' must be a sweep's, got one without diverged, [^\n]+$"):
        fpj.plot({"one": results[EVIL].drop_vars("diverged")[["distance"]]})
    one = results[EVIL].isel(mu=[0], round=[-1])
    with pytest.raises(Refusal, match="results must have an axis of several values or several records"):
        fpj.plot(one)


def test_the_page_is_complete_and_needs_no_other_file(results):
    this = summary(results.spec, results.best)
    text = page(this, results, plots.all_plots(this))
    assert text.count("<script>") == 1  # sorts and filters tables
    assert "[bold]" in text
    assert "&lt;script&gt;" in text
    assert text.count("data:image/svg+xml,") == 2
    assert "settings chosen by the best mean excess_risk" in text
    assert "free: step_size" in text
    assert "<code>inputs.json</code>" in text
    for elsewhere in ('src="http', 'href="http', "url(", "@import"):
        assert elsewhere not in text
    for sheet in tables(this).sheets:
        assert all(escape(cell) in text for column in sheet.columns for cell in column.cells)
    guarantee = fpj.guarantee_of(results[EVIL].sel(mu=1.0))
    assert guarantee.paragraph().split(" for ")[0] in text
    for words in (
        "step_size by the best mean excess_risk",
        "Metrics computed on private data: ",
        "guarantee is for one run",
    ):
        assert words in text
    for words in ("every = 2", results.provenance["date"], results.provenance["data_sha256"]["training.label"]):
        assert words in text


def test_guarantees_name_an_axis_that_they_do_not_depend_on_once(results):
    data = results[EVIL]
    points = {"mu": data.mu.values.tolist(), "step_size": [0.1, 0.2, 0.3], "machines": [5]}
    fixed = {name: values for name, values in points.items() if name != "mu"}
    texts = data["guarantee"].drop_vars("step_size", errors="ignore").expand_dims(fixed)
    found = guarantee_texts(xr.Dataset({"guarantee": texts.transpose(*points)}))
    assert list(found.values()) == [f"mu = {mu:g}, machines = 5, any step_size" for mu in points["mu"]]


def test_a_metric_against_epsilon_is_at_the_top_of_the_page(results):
    this = summary(results.spec, results.best)
    drawn = plots.all_plots(this)
    (lead,) = [name.replace("_", " ") for name in drawn if name.endswith("_against_epsilon")]
    text = page(this, results, drawn)
    assert text.count(f'alt="{lead}"') == 1
    assert text.index(f'alt="{lead}"') < text.index('<h2 id="tables">') < text.index('<h2 id="plots">')


def test_figures_are_switched_by_buttons_and_those_of_a_run_name_it(results):
    this = summary(results.spec, results.best)
    drawn, of_run = plots.all_plots(this), {"participation": new_figure(1.0, 1.0, 1, 1)}
    text = page(this, results, drawn, RunFigures(run="<ours> at mu = 1", figures=as_drawn(of_run)))
    assert re.findall(r'type="radio"[^>]*>\s*<label[^>]*>([^<]*)', text)[-1] == "participation"
    assert text.count('type="radio"') == text.count("<figure>") - 1 == len(drawn)  # one is at the top
    assert text.count(" checked>") == 1
    assert "show &lt;ours&gt; at mu = 1, first seed" in text
    assert "first seed" not in page(this, results, drawn)


def test_figures_of_a_run_are_read_back_unless_their_file_was_changed(results, tmp_path):
    this, there = summary(results.spec, results.best), replace(results, folder=tmp_path)
    written = write_page(this, there, {}, ("one", {"participation": new_figure(1.0, 1.0, 1, 1)})).read_text()
    assert write_page(this, there, {}).read_text() == written
    assert "show one, first seed" in written
    kept = tmp_path / RUN_FIGURES
    content = kept.read_text()
    elsewhere, escaping = content.replace("data:image", "https:image"), content.replace("+xml,", '+xml,\\"')
    wide = content.replace('"narrow":""', '"narrow":"data:image/svg+xml,x 1x, https://evil.example/t.png 2x"')
    of_others = content.replace('"date":', '"date":"2020-01-01T00:00:00+00:00","then":')
    assert len({content, elsewhere, escaping, wide, of_others}) == 5
    for changed in (content[:-1], elsewhere, escaping, wide, of_others):
        kept.write_text(changed)
        assert "show one" not in write_page(this, there, {}).read_text()


def test_one_protocol_of_two_seeds_without_axes(results):
    data = {"ours": results[EVIL].isel(mu=[0], seed=[0, 1])}
    this = summary_of(data)
    (sheet, *_), figures = tables(this).sheets, plots.all_plots(this)
    assert (sheet.title.split(";")[0], sheet.frame.shape) == ("excess risk, mean over 2 seeds", (1, 1))
    assert not any("±" in str(each) for each in tables(this).sheets)
    assert list(figures) == ["excess_risk_over_rounds"]
    assert not figures["excess_risk_over_rounds"].axes[0].collections
    assert 'id="plots"' in page(this, results, figures)
    assert 'id="plots"' not in page(this, results, {})


def test_private_datasets_of_different_delta_are_refused_and_non_private_ones_have_any(results):
    ours, free = results[EVIL], results["free"].assign_attrs(delta=0.1)
    for show in (fpj.table, fpj.frame, fpj.plot):
        with pytest.raises(Refusal, match=r"delta of 'theirs' must be that of 'ours', 1e-05, got 0\.01"):
            show({"free": free, "ours": ours, "theirs": ours.assign_attrs(delta=0.01)})
    titles = [sheet.title for sheet in fpj.table({"free": free, "ours": ours}).sheets[:1]]
    assert titles[0].endswith("; ε at δ = 1e-05")
    assert "10^{-5}" in fpj.plot({"free": free, "ours": ours}, against="epsilon").axes[0].get_xlabel()
    assert fpj.table({"free": free}).sheets[0].title.endswith("; ε at δ = 0.1")


def test_datasets_of_other_levels_have_rows_of_their_own_or_a_realised_epsilon(results):
    ours = results[EVIL]
    first, second = ours.isel(mu=[0]), ours.isel(mu=[1])
    epsilon = [epsilon_text(float(gdp.epsilon(mu, 1e-5))) for mu in (1, 8)]
    stated = fpj.table({"theirs": second, "ours": ours}).sheets[-2]
    assert stated.title.startswith("realised ε at δ = 1e-05")
    assert stated.frame.columns.tolist() == ["mu", "target ε", f"theirs (target {epsilon[1]})", "ours"]
    one = fpj.table({"ours": first, "theirs": second}).sheets[-2]
    assert one.frame.columns.tolist() == [f"ours (target {epsilon[0]})", f"theirs (target {epsilon[1]})"]
    further = second.assign_coords(mu=[20.0])
    wider = xr.concat([second, further], "mu", data_vars="minimal", coords="minimal", compat="override")
    texts = fpj.table({"ours": ours, "theirs": wider}, "excess_risk").sheets[0].frame
    assert texts["mu"].tolist() == ["1", "8", "20"]
    assert texts[["ours", "theirs"]].eq("–").to_numpy().tolist() == [[False, True], [False, False], [True, False]]
    means = fpj.frame({"ours": ours, "theirs": wider}, "excess_risk")
    assert means["mean"].isna().tolist() == [False, True, False, False, True, False]
    assert means["realised_epsilon"].isna().tolist() == means["mean"].isna().tolist()


def test_a_single_table_and_its_latex_form_state_a_realised_epsilon_above_its_target(results):
    ours = results[EVIL]
    above = ours.assign(realised_epsilon=10 * ours["realised_epsilon"])
    shown = fpj.table({"ours": above}, "excess_risk")
    assert [sheet.title.startswith("realised ε") for sheet in shown.sheets] == [False, True]
    assert "realised ε is above its target: ours (up to 654 !)" in shown.notes
    text = fpj.frame({"ours": above}, "excess_risk").to_latex()
    assert "% realised ε at δ = 1e-05, the worst of 3 seeds: mu 8, target ε 65.4 !, ours 654 !" in text
    assert r"realised $\varepsilon$ is above its target: ours (up to 654 !)} \\" in text
    first = ours.assign(realised_epsilon=ours["realised_epsilon"] * xr.where(ours["mu"] == 1, 1.5, 1))
    assert "realised ε is above its target: ours (up to 6.57)" in fpj.table({"ours": first}, "excess_risk").notes
    assert "realised" not in fpj.frame({"ours": ours}, "excess_risk").to_latex().replace(
        "% realised ε of the worst", ""
    )


def test_levels_in_different_units_have_a_realised_epsilon(results):
    ours = results[EVIL]
    theirs = ours.rename(mu="epsilon").assign_coords(epsilon=ours["target_epsilon"].values)
    title = fpj.table({"ours": ours, "theirs": theirs}).sheets[-2].title
    assert title.startswith("realised ε at δ = 1e-05")


def test_panels_are_stacked_for_a_phone_with_their_labels_and_one_legend():
    figure, axes = panelled(4)
    for axis in axes:
        axis.plot([0, 1], [0, 1], label="one")
        axis.plot([0, 1], [1, 0], label="two")
    axes[0].set_ylabel("accuracy")
    add_legend(figure, axes)
    assert stack_panels(figure)
    tops = [axis.get_subplotspec().rowspan.start for axis in figure.axes]
    assert (tops, {axis.get_ylabel() for axis in figure.axes}) == ([0, 1, 2, 3], {"accuracy"})
    assert all(axis.yaxis.get_tick_params()["labelleft"] for axis in figure.axes)
    assert len(figure.legends) == 1
    assert figure.get_figwidth() == 4.2
    assert not stack_panels(figure)
    assert not stack_panels(new_figure(1.0, 1.0, 1, 1))
    figure, axes = panelled(7)
    assert stack_panels(figure)
    assert [axis.get_subplotspec().rowspan.start for axis in axes] == list(range(7))
