import pytest

from clnp.report.panels import MOST_PANELS, num_columns, task_panels

pytestmark = pytest.mark.usefixtures("style")


@pytest.mark.parametrize(
    ("num", "columns"), [(1, 1), (2, 2), (5, 5), (6, 3), (8, 4), (10, 5), (12, 4), (50, 10)]
)
def test_panels_leave_few_places_empty(num, columns):
    assert num_columns(num) == columns


def test_a_panel_for_each_task_that_has_something_to_show():
    panels = task_panels(["a", "b", "c"], has_data=lambda place: place != 1)
    assert panels.shown == [0, 2]
    assert [axes.get_title(loc="left") for axes in panels.axes] == ["1: a", "3: c"]
    assert panels.note == " The first 1 and the last 1 tasks are shown."


def test_of_very_many_tasks_the_first_and_the_last_are_shown():
    panels = task_panels([f"t{n}" for n in range(200)], has_data=lambda place: True)
    assert len(panels.axes) == MOST_PANELS
    assert panels.shown[:2] == [0, 1]
    assert panels.shown[-1] == 199
    assert panels.note == " The first 30 and the last 30 tasks are shown."


def test_the_last_panel_of_every_column_has_numbers_below():
    panels = task_panels([f"t{n}" for n in range(7)], has_data=lambda place: True)
    assert len(panels.figure.axes) == 7
    for axes in panels.axes[3:]:
        assert any(label.get_visible() for label in axes.get_xticklabels())
    assert panels.note == ""
