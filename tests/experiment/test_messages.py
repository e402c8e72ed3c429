"""Messages for mistakes in an experiment file: the place, the client concerned, and the remedy."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedprivjax import Refusal, cli, experiment
from fedprivjax.checks.suggestions import WHOLE_CLIENTS
from fedprivjax.experiment import folder
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.jobs import jobs, ready_experiment
from fedprivjax.testing.tiny import tiny

FILE = """
title = "t"

[problem]
dataset = "people.csv"
radius = 2.0

[problem.options]
target = "island"
client = "who"
features = ["bill", "flipper"]
bounds = { bill = [0, 1], flipper = [0, 1] }
test_fraction = 0

[participation]
per_round = 2
rounds = 2

[[protocol]]
name = "dp_mu2"
label = "DP-μ²-FL"

[sweep]
mu = [1.0]
seeds = 1
"""


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Return a function that makes the jobs of the file, with text replaced, and returns the message of the refusal."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{'AB'[i % 2]},{rng.random():.3f},{rng.random():.3f},{'12'[i > 4]},{i % 4}" for i in range(40)]
    Path("people.csv").write_text("\n".join(["island,bill,flipper,who,religious", *rows]), encoding="utf-8")

    def refused(*changes, text=FILE):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        Path("file.toml").write_text(text, encoding="utf-8")
        with pytest.raises(Refusal) as caught:
            jobs(experiment.load("file.toml"))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


def test_single_brackets_before_double_ones_are_named(said):
    message = said(("[[protocol]]", "[protocol]"), ("[sweep]", '[[protocol]]\nname = "noisy_sgd"\n\n[sweep]'))
    assert message.startswith("file.toml is not valid TOML: ")
    assert message.endswith(". Write every [protocol] as [[protocol]]")


def test_more_rounds_than_the_smallest_client_has_records_for(said):
    message = said(("rounds = 2", "rounds = 9"))
    start = "[[protocol]] 'DP-μ²-FL': client '1' must have at least 9 examples for this schedule, got 5. "
    assert message.startswith(start)
    for remedy in ("fewer rounds", "by_size", "batch"):
        assert remedy in message
    message = said(("rounds = 2", "rounds = 3"), ('label = "', 'batch = 2\nlabel = "'))
    assert message == (
        "[[protocol]] 'DP-μ²-FL': batch · messages must be at most the 5 records of client '1' in one pass, "
        "got 2 · 3 = 6. Use fewer rounds, a smaller batch, or participation by_size (BySize)"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("clip = -1.0", "clip must be positive, got -1.0"),
        ("batch = 6", "batch must be at most the 5 records of client '1' (dealt), got 6"),
        ("clp = 1.0", "unknown key 'clp', did you mean 'clip'?"),
        ("rounds = 2", "rounds must be in [participation], got it here"),
        ("seeds = 2", "seeds must be in [sweep] or [tuning], got it here"),
        ("delta = 1e-5", "delta must be in [evaluation], got it here"),
        ("machines = 5", "machines must be in [participation], got it here"),
        ('unit = "machine"', f"unknown key 'unit'. {WHOLE_CLIENTS}"),
        ("mu = [1.0, 2.0]", "mu must be one number, got [1.0, 2.0]. Put several into [sweep] mu"),
        ('grid = { clip = ["a"] }', "grid.clip.0 must be a number, got 'a'"),
        ('grid = { server.b1 = ["x"] }', "grid.server.b1.0 must be a number, got 'x'"),
        ("grid = { clp = [1.0] }", "unknown key in its grid 'clp', did you mean 'clip'?"),
    ],
)
def test_messages_name_the_protocol_by_its_label(said, settings, message):
    assert said(('label = "', f'{settings}\nlabel = "')).startswith(f"[[protocol]] 'DP-μ²-FL': {message}")


def test_a_refusal_on_the_command_line_is_its_message_alone(said, monkeypatch, capsys):
    message = said(("mu = [1.0]", "mu = [-1.0]"))
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "privacy", "file.toml"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert (stopped.value.code, capsys.readouterr().err) == (2, f"{message}\n")


MU = "mu = [1.0]"
LABEL = 'label = "DP-μ²-FL"'
OTHERS = '\n[[protocol]]\nname = "noisy_sgd"\n[[protocol]]\nname = "user_sgd"\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((MU, 'epsilon = "2"'), "sweep.epsilon must be a number, got '2'. Remove the quotes"),
        ((MU, 'epsilon = [2, "x"]'), "sweep.epsilon.1 must be a number, got 'x'"),
        ((MU, 'server.b1 = ["x"]'), "sweep.server.b1.0 must be a number, got 'x'"),
        ((MU, f"{MU}\n[[expected]]\nmachines = 5"), "machines must be in [participation], got it in [expected.0]"),
        (
            ("[participation]", "[participation]\noptions = { rate = 0.5 }"),
            "options must be left out of [participation]. Write its entries as keys of [participation]",
        ),
        (
            ('name = "dp_mu2"', 'name = "fedprivjax.method.protocol:Pair"'),
            "protocol 'fedprivjax.method.protocol:Pair' must be an Algorithm or a LocalAlgorithm, got ",
        ),
        (
            ("[[protocol]]", "[protocol]"),
            "protocol must be a list of tables under [[protocol]], with double brackets, got {",
        ),
        (("dataset = ", "table = "), "unknown key in [problem] 'table', did you mean 'dataset'?"),
        (("dataset = ", "source = 3\ndataset = "), "source must be left out, for its name is reserved, got 3"),
        (("dataset = ", "sources = 3\ndataset = "), "unknown key in [problem] 'sources' (nearest: "),
        (
            ("[participation]", '[participation]\nkind = "bernoulli"'),
            "unknown participation 'bernoulli', did you mean 'binomial'?",
        ),
        (("[participation]", "[participation]\nkind = 07:32:00"), "unknown participation '07:32:00' (nearest: "),
        (("dataset = ", "rounds = 2\ndataset = "), "rounds must be in [participation], got it in [problem]"),
        (
            ("[participation]", "[participation]\nseeds = 3"),
            "seeds must be in [sweep] or [tuning], got it in [participation]",
        ),
        (('"dp_mu2"', '"FedAvg"'), "unknown protocol 'FedAvg', did you mean 'fedavg'?"),
        (
            ('"dp_mu2"', '"dp_fedavg"'),
            "unknown protocol 'dp_fedavg', did you mean 'fedavg'? DP-FedAvg is FedAvg with unit = 'machine'",
        ),
        (('"dp_mu2"', '"dp_sgd"'), "unknown protocol 'dp_sgd', did you mean 'noisy_minibatch_sgd'?"),
        ((MU, "learning_rate = [0.1]"), "unknown key in [sweep] 'learning_rate', did you mean 'step_size'?"),
        ((MU, f"{MU}\noptions = {{}}"), "sweep.options must be a number, got {}"),
        (('who"', 'who"\nseed = "1"'), "seed must be an integer, got '1'. Remove the quotes"),
        (("radius", 'model = { kind = "mlp", hidden = 0 }\nradius'), "problem.model.hidden must be a list, got 0"),
        (
            ("radius", 'model = { kind = "mlp", hidden = [8, 0] }\nradius'),
            "[problem.model]: hidden must be at least 1, got 0. Leave out the layer",
        ),
        (("radius", "loss = 3\nradius"), "problem.loss must be a name or a table with kind, got 3"),
        (("radius", 'kind = "logistik"\nradius'), "unknown key in [problem] 'kind' (nearest: "),
        (
            ("radius", "picture = [0, 64]\nradius"),
            "[problem]: picture must be [height, width] or [height, width, channels], got [0, 64]",
        ),
        (
            ("radius", 'loss = { kind = "huber", delta = 0.5 }\nradius'),
            "unknown key in [problem.loss] 'delta', did you mean 'width'?",
        ),
        (
            ("radius", 'loss = { kind = "hinge", delta = 0.5 }\nradius'),
            "unknown key in [problem.loss] 'delta' (known: smoothing, kind)",
        ),
        (
            ("radius", 'model = { kind = "mlp", rounds = 5 }\nradius'),
            "unknown key in [problem.model] 'rounds' (known: start_seed, convolutions, clipping, kind, hidden, ",
        ),
        (
            ("radius", 'loss = { kind = "hinge", distance = 0.5 }\nradius'),
            "unknown key in [problem.loss] 'distance' (known: smoothing, kind)",
        ),
        (("radius", "picture = 8\nradius"), "problem.picture must be a list, got 8"),
        (
            (f"[sweep]\n{MU}", f"{OTHERS}[sweep]"),
            "one of epsilon, mu and noise_std must be given for every [[protocol]], got none for 'DP-μ²-FL', "
            "'noisy_sgd', 'user_sgd'. Set epsilon (with delta), mu (GDP) or noise_std, there or in [sweep]; "
            "epsilon = inf is non-private",
        ),
    ],
)
def test_values_that_a_section_cannot_have(said, change, message):
    assert said(change).startswith(message)


def test_minibatches_without_a_partition_name_the_key_of_the_file(said):
    shared = ('client = "who"\n', ""), ("per_round = 2", "per_round = 2\nmachines = 4")
    message = said(*shared, ('"dp_mu2"', '"noisy_minibatch_sgd"\nbatch = 2\nsampler = "poisson"\nclip = 1.0'))
    assert message.startswith("[[protocol]] 'DP-μ²-FL': problem.partition must be given, because machines sample")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("dp_mu2", 'epsilon = "2"', "epsilon must be a positive number, got '2'. Remove the quotes"),
        ("dp_mu2", "learning_rate = 0.1", "unknown key 'learning_rate', did you mean 'step_size'?"),
        ("dp_mu2", "lr = 0.1", "unknown key 'lr', did you mean 'step_size'?"),
        (
            "dp_mu2",
            "noise_multiplier = 1.0",
            "unknown key 'noise_multiplier', did you mean 'noise_std'? It is a standard",
        ),
        ("user_sgd", "mu = 1.0", "unknown key 'mu', did you mean 'epsilon'? This method takes an ε. "),
    ],
)
def test_keys_of_other_libraries_are_answered_with_the_name_here(said, name, line, message):
    changed = said(('name = "dp_mu2"', f'name = "{name}"\n{line}'))
    assert changed.startswith(f"[[protocol]] 'DP-μ²-FL': {message}")


ISLAND = 'target = "island"'


def test_more_classes_than_the_loss_takes(said):
    change = (("radius", 'loss = "logistic"\nradius'), (ISLAND, 'target = "religious"'))
    message = (
        "loss must take the 4 classes of 'religious', got Logistic, which takes 2. Set loss = 'softmax' (Softmax(4))"
    )
    assert said(*change) == message


def test_all_columns_that_need_bounds_are_named_at_once(said):
    message = said(("bounds = { bill = [0, 1], flipper = [0, 1] }", ""))
    assert message.startswith("bounds of 'bill', 'flipper' must be given. Set public limits, such as bounds = { ")
    assert '{ "bill" = [low, high], "flipper" = [low, high] }' in message


def test_columns_of_dates(said):
    Path("people.csv").write_text("when,island\n2020-01-01,A\n2020-01-02,B\n", encoding="utf-8")
    message = said(
        ('client = "who"', ""),
        ('["bill", "flipper"]', '["when"]'),
        ("bounds = { bill = [0, 1], flipper = [0, 1] }", ""),
    )
    assert message.startswith(
        "column 'when' must hold numbers or words, got dates as text, such as '2020-01-01'. Leave it"
    )


@pytest.mark.parametrize(("mark", "words"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_table_of_another_separator(said, mark, words):
    path = Path("people.csv")
    path.write_text(path.read_text(encoding="utf-8").replace(",", mark), encoding="utf-8")
    assert said() == f"people.csv must separate columns by commas, got {words}. Save it with commas"


def test_a_target_of_one_class(said):
    path = Path("people.csv")
    path.write_text(path.read_text(encoding="utf-8").replace("B,", "A,"), encoding="utf-8")
    assert said().startswith("target 'island' must have at least two classes, got 'A' in every row.")
    Path("file.toml").write_text(FILE.replace(ISLAND, f'classes = ["A", "B"]\n{ISLAND}'), encoding="utf-8")
    settings = experiment.load("file.toml")
    with pytest.warns(UserWarning, match="all 40 training labels of 'island' are class 'A': accuracy says nothing"):
        experiment.make_problem(settings.problem, 2)


@pytest.mark.parametrize("place", ["grid", "expected"])
def test_a_metric_that_is_known_but_not_recorded(said, place):
    end = "seeds = 1\n[evaluation]\nmetrics = ['train_loss']\n"
    if place == "grid":
        message = said(("seeds = 1", end), (LABEL, f"{LABEL}\ngrid = {{ step_scale = [1, 2] }}"))
        assert "evaluation.select 'test_accuracy' must be recorded, got train_loss. Choose one of these, or" in message
        return
    cells = "[[expected]]\nprotocol = 'DP-μ²-FL'\ncells = [{ at = { mu = 1 }, value = 0.5 }]\n"
    said_of = "metric of 'DP-μ²-FL' in [[expected]] 'test_accuracy' must be recorded, got train_loss. Choose one"
    Path("file.toml").write_text(FILE.replace("seeds = 1", end + cells), encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        ready_experiment(experiment.load("file.toml"), judge=True)
    assert str(caught.value).startswith(said_of)


def test_a_folder_of_other_settings_says_which(tmp_path, said):
    Path("file.toml").write_text(FILE, encoding="utf-8")
    folder.claim(tmp_path / "there", experiment.load("file.toml"))
    with pytest.raises(Refusal) as caught:
        folder.claim(tmp_path / "there", experiment.load("file.toml", {"sweep.seeds": 2, "protocol.0.clip": 1.5}))
    keys = "sweep.seeds = 1 there and 2 here, protocol.DP-μ²-FL.clip = nothing there and 1.5 here"
    assert f"holds results of different settings: {keys}. Choose another with --out" in str(caught.value)
    with pytest.raises(Refusal) as caught:
        folder.claim(tmp_path / "there", experiment.load("file.toml", {"sweep.seeds": list(range(100))}))
    shortened = "sweep.seeds = 1 there and [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, … here"
    assert shortened in str(caught.value)


@pytest.mark.parametrize("stage", ["reading", "running"])
def test_a_stop_before_the_first_chunk_reports_that_nothing_is_stored(said, monkeypatch, capsys, stage):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    Path("file.toml").write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(*((listed, "_checked") if stage == "reading" else (runner, "execute")), stop)
    monkeypatch.setattr(cli.console, "leave", sys.exit)
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "run", "file.toml"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    done = "nothing ran yet" if stage == "reading" else "no chunk of 1 runs was finished"
    line = f"stopped: {done}, so nothing is saved. Start again with fedprivjax run file.toml\n"
    assert (stopped.value.code, capsys.readouterr().err) == (130, line)


def test_a_tiny_copy_names_the_protocol_too():
    with pytest.raises(Refusal) as caught:
        tiny(experiment.load("your-own/people", {"participation.kind": "uniform", "participation.per_round": 99}))
    assert str(caught.value) == "[participation] for 'full batches': per_round must be at most machines (8), got 99"
