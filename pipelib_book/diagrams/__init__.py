"""The book's drawn diagrams, made by code: `diagram(name)` gives one to a chapter.

`shapes` has the parts, `figure` what a notebook shows, `catalogue` the order and the numbers; the
other modules have the drawings, by subject. A diagram explains a concept. What can be computed from
a kernel, its schedule or its times, is a player or a plot instead.
"""
