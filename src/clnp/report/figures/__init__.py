"""The figures of a report, one file for each question that a reader has.

To add one, write a function of the collection that returns a `Picture`, or None where there is
nothing to show, and give it a section in `report/page.py`.
"""
