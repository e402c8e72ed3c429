"""Who holds what: bars as high as what machines hold, named where there is room."""

import numpy as np
import pandas as pd
import pytest

from fedprivjax.datasets import from_frame, load, table
from fedprivjax.report.partition_plot import data_lines, plot_partition


def test_bars_are_each_machines_examples_by_class():
    labels = np.array([0, 1, 1, 2, 0, 2, 2])
    rows = table([np.array([0, 1, 2]), np.array([3, 5, 6, 4])])[0]
    figure = plot_partition(labels, rows, classes=3, class_names=["a", "b", "c"], machine_names=["north", "south"])
    (axis,) = figure.axes
    heights = np.array([patch.get_height() for patch in axis.patches]).reshape(3, 2)
    assert heights.tolist() == [[1, 1], [2, 0], [0, 3]]
    tops = np.array([patch.get_y() + patch.get_height() for patch in axis.patches]).reshape(3, 2)
    assert tops[-1].tolist() == [3, 4]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["north", "south"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert axis.get_title() == "2 machines of 3 to 4 examples, 7 in all"


def test_numbers_are_shown_by_size_and_percentiles():
    labels = np.arange(101.0)
    figure = plot_partition(labels, [np.arange(101), np.array([7]), np.array([], int)])
    sizes, below = figure.axes
    assert [patch.get_height() for patch in sizes.patches] == [101, 1, 0]
    box = below.patches[0]
    assert (box.get_y(), box.get_height()) == pytest.approx((25, 50))
    assert below.lines[0].get_ydata().tolist() == [50, 7]


@pytest.mark.parametrize(("machines", "classes"), [(31, 3), (2, 25)])
def test_many_machines_and_classes_are_not_named_one_by_one(machines, classes):
    labels = np.arange(machines * classes) % classes
    figure = plot_partition(labels, np.arange(machines * classes).reshape(machines, classes), classes=classes)
    assert bool(figure.legends) == (classes == 3)
    assert len(figure.axes[0].get_xticklabels()) < 20


def test_many_machines_are_areas_in_the_order_of_their_main_class_and_size():
    parts = [np.arange(1 + machine % 3) if machine % 2 else np.arange(5, 9) for machine in range(120)]
    figure = plot_partition(np.array([0] * 5 + [1] * 5), parts, classes=2)
    (axis,) = figure.axes
    first, second = (area.get_paths()[0] for area in axis.collections)
    assert not axis.patches
    tops = [sum(first.contains_point((machine, y)) for y in (0.5, 1.5, 2.5)) for machine in (1, 58, 61, 118)]
    assert tops == [3, 1, 0, 0]
    assert [second.contains_point((machine, 3.5)) for machine in (1, 58, 61, 118)] == [False, False, True, True]
    assert axis.get_ylim()[0] == 0
    assert axis.get_xlabel() == "machines by most frequent class and size"
    numbers = plot_partition(np.arange(10.0), parts).axes
    assert [len(axis.collections) for axis in numbers] == [1, 1]
    assert numbers[-1].get_xlabel() == "machine"


def test_lines_name_classes_and_machines():
    frame = pd.DataFrame({"x": np.zeros(60), "who": np.repeat(np.arange(30), 2), "y": ["no", "yes"] * 30})
    data = from_frame(frame, "y", client="who", bounds={"x": [0, 1]}, test_fraction=0.5)
    (line,) = data_lines(data)
    assert line.startswith(
        "frame: 30 training and 30 test rows; 30 machines: 0 = '0', 1 = '1', 2 = '2', …, 29 = '29'; "
    )
    assert line.endswith("classes: 0 = 'no', 1 = 'yes'")
    assert data_lines(load("digits")) == []
