"""The picture of a trace."""

import re

from pathways import _timeline
from pathways._timeline import Span


def test_each_of_many_functions_has_a_color_of_its_own():
    picture = _timeline._svg([Span(0, f"f{i}", i, float(i), 1.0) for i in range(24)])
    assert len(set(re.findall(r'height="20" fill="(#[0-9a-f]{6})"', picture))) == 24
