"""Who holds what: areas as high as what machines hold, named where there is room."""

import numpy as np
import pytest

from fedprivjax.datasets import table
from fedprivjax.report.partition_plot import plot_partition


def test_areas_are_each_machines_examples_by_class():
    labels = np.array([0, 1, 1, 2, 0, 2, 2])
    rows = table([np.array([0, 1, 2]), np.array([3, 5, 6, 4])])[0]
    figure = plot_partition(labels, rows, classes=3, class_names=["a", "b", "c"], machine_names=["north", "south"])
    (axis,) = figure.axes
    areas = [area.get_data() for area in axis.patches]
    assert [(area.values - area.baseline).tolist() for area in areas] == [[1, 1], [2, 0], [0, 3]]
    assert areas[-1].values.tolist() == [3, 4]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["north", "south"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert axis.get_title() == "2 machines of 3 to 4 examples, 7 in all"


def test_numbers_are_shown_by_size_and_percentiles():
    labels = np.arange(101.0)
    figure = plot_partition(labels, [np.arange(101), np.array([7]), np.array([], int)])
    sizes, below = figure.axes
    assert sizes.patches[0].get_data().values.tolist() == [101, 1, 0]
    _, box, median = (area.get_data() for area in below.patches)
    assert (box.baseline[0], box.values[0]) == pytest.approx((25, 75))
    np.testing.assert_array_equal(median.values, [50, 7, np.nan])


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
    first, second = (area.get_data().values for area in axis.patches)
    assert first[[1, 58, 61, 118]].tolist() == [3, 1, 0, 0]
    assert second[[1, 58, 61, 118]].tolist() == [3, 1, 4, 4]
    assert axis.get_ylim()[0] == 0
    assert axis.get_xlabel() == "machines by most frequent class and size"
    assert plot_partition(np.arange(10.0), parts).axes[-1].get_xlabel() == "machine"
